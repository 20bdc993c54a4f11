"""Answer a question from a document, and show the accepted draft tokens."""

from pathlib import Path

import graft
from graft.documents import document_messages, read_document

DOCUMENT = Path(__file__).with_name("service_agreement.md")

engine = graft.load("smollm2-135m")
messages = document_messages("What does the Customer pay?", [read_document(DOCUMENT)])
stream = engine.stream(messages, graft.SamplingParams(max_tokens=200))

for event in stream:
    print(event.text, end="", flush=True)

stats = stream.result.stats
print(f"\n\n{stats.tokens} tokens, {stats.tokens_per_second:.1f} tokens/s, ", end="")
print(f"{stats.tokens_per_step:.2f} per step, accepted from {dict(stats.accepted_by_source)}")
