"""From names to networks that score trees."""

import logging

# Where torchao is installed transformers imports it, and torch 2.13 warns of how it registers.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
