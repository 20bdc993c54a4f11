"""Sampling with a seed: the text is the same with every draft preset."""

from pathlib import Path

import graft
from graft.assemble.presets import PRESETS
from graft.documents import document_messages, read_document

DOCUMENT = Path(__file__).with_name("service_agreement.md")

engine = graft.load("smollm2-135m", dtype="fp32")
messages = document_messages("Summarise the prices.", [read_document(DOCUMENT)])

for seed in (1, 2):
    params = graft.SamplingParams(temperature=0.8, top_p=0.95, max_tokens=48, seed=seed)
    texts = {}
    for name in PRESETS:
        stream = engine.stream(messages, params, draft=name)
        texts[name] = "".join(event.text for event in stream)
    print(f"seed {seed}: {texts['plain']!r}")
    print("same with", ", ".join(name for name in PRESETS if texts[name] == texts["plain"]))
