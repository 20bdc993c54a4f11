"""Every draft preset on one document: the same answer, at different speeds."""

from pathlib import Path

import graft
from graft.assemble.presets import PRESETS
from graft.documents import document_messages, read_document

DOCUMENT = Path(__file__).with_name("service_agreement.md")
QUESTION = "List the equipment that the Contractor maintains."

engine = graft.load("smollm2-135m", dtype="fp32")
messages = document_messages(QUESTION, [read_document(DOCUMENT)])
params = graft.SamplingParams(max_tokens=160)


def answer(draft: str) -> graft.Result:
    """Decode to the end with one preset."""
    stream = engine.stream(messages, params, draft=draft)
    for _ in stream:
        pass
    return stream.result


answer("auto")  # warm-up, not measured
plain = answer("plain")
print(f"{'draft':8}{'tokens/s':>10}{'per step':>10}{'speed-up':>10}  same tokens")
for name in PRESETS:
    result = plain if name == "plain" else answer(name)
    stats = result.stats
    speedup = plain.stats.decode_seconds / stats.decode_seconds
    same = "yes" if result.token_ids == plain.token_ids else "no"
    print(f"{name:8}{stats.tokens_per_second:>10.1f}{stats.tokens_per_step:>10.2f}", end="")
    print(f"{speedup:>9.2f}x  {same}")
