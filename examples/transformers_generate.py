"""Drafting in a transformers model's own `generate`: the same tokens in fewer steps."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

from graft.documents import document_messages, read_document
from graft.integrations import hf
from graft.models.checkpoints.pretrained import locate

DOCUMENT = Path(__file__).with_name("service_agreement.md")
folder = locate("smollm2-135m").folder  # or the folder of another decoder

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
messages = document_messages(
    "List the equipment that the Contractor maintains.", [read_document(DOCUMENT)]
)
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)

output = model.generate(
    **inputs,
    custom_generate=hf.generate,
    max_new_tokens=120,
    do_sample=False,
    streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
)

(stats,) = hf.last_stats(model)
print(f"\n{stats.tokens} tokens in {stats.decode_seconds:.2f} s, ", end="")
print(f"{stats.tokens_per_step:.2f} per step, accepted from {dict(stats.accepted_by_source)}")
