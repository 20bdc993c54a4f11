"""Drafting in transformers' own `generate`: the same call, the same tokens, fewer steps.

model.generate(**inputs, custom_generate=graft.integrations.hf.generate, max_new_tokens=200)
"""

from graft.integrations.hf.engines import release as release
from graft.integrations.hf.loop import generate as generate
from graft.integrations.hf.loop import last_stats as last_stats
