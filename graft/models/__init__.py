"""From names to networks that score trees."""

import logging

# Where torchao is installed transformers imports it: torch 2.13 warns of how it registers, and it
# warns of each of its libraries, which Graft does not use, that does not load.
for name in ("torch.utils._pytree", "torchao"):
    logging.getLogger(name).setLevel(logging.ERROR)
