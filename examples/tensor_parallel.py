"""Drafting with a model that transformers splits over several GPUs (tensor parallel).

torchrun --nproc-per-node 3 examples/tensor_parallel.py   # must divide its 3 key-value heads
"""

import os
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.distributed import DistributedConfig

from graft.documents import document_messages, read_document
from graft.integrations import hf
from graft.models.checkpoints.pretrained import locate

folder = locate("smollm2-135m").folder  # or the folder of a model too large for one GPU
document = read_document(Path(__file__).with_name("service_agreement.md"))

tokenizer = AutoTokenizer.from_pretrained(folder)
split = DistributedConfig(tp_plan="auto")
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", distributed_config=split)
messages = document_messages("List the equipment that the Contractor maintains.", [document])
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
).to(model.device)

first = os.environ["RANK"] == "0"  # all processes generate the same tokens; one prints them
streamer = TextStreamer(tokenizer, skip_prompt=True) if first else None
model.generate(
    **inputs, custom_generate=hf.generate, max_new_tokens=60, do_sample=False, streamer=streamer
)
if first:
    print(f"{hf.last_stats(model)[0].tokens_per_step:.2f} tokens per step")
