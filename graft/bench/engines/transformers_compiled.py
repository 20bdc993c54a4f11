"""transformers with a static cache and compiled decoding steps, as its documentation advises.

A compiled step is valid for one batch size, one cache length and, with CUDA graphs, one address: so
caches are reused, have few lengths, and are warmed up before anything is timed.
"""

import importlib.util
import os
import shutil
from typing import Any

Model = Any  # of transformers
Cache = Any
MIN_LENGTH = 512  # of a cache, in tokens; longer ones double
WARM_UP = 16  # tokens: compiling, capturing and replaying each take a few steps
MAX_COMPILED = 64  # versions that torch keeps


def require_compiler(device: str) -> None:
    """Exit where torch.compile has no compiler: C++ on a CPU, C for Triton's launchers on a GPU."""
    if device.startswith("cuda") and importlib.util.find_spec("triton") is None:
        raise SystemExit(
            "transformers-compiled needs Triton, which is not installed beside this torch"
        )
    named = os.environ.get("CC" if device.startswith("cuda") else "CXX")
    known = ("gcc", "clang", "cc") if device.startswith("cuda") else ("g++", "clang++", "c++")
    if not any(map(shutil.which, (named,) if named else known)):
        raise SystemExit(
            f"transformers-compiled needs a compiler, one of {', '.join(known)}: torch.compile"
        )


class Compiled:
    """Options of `generate` that compile its steps, with a cache of the right size."""

    def __init__(self, model: Model, mode: str) -> None:
        import torch
        from transformers import CompileConfig

        torch._dynamo.config.recompile_limit = MAX_COMPILED
        self._model = model
        self._config = CompileConfig(mode=mode, dynamic=False)
        self._config._compile_all_devices = True  # else transformers compiles on GPUs alone
        self._caches: dict[tuple[int, int], Cache] = {}

    def options(self, inputs: dict, wanted: dict) -> dict:
        """The options for these inputs; compiles what is not compiled yet."""
        batch, width = inputs["inputs"].shape
        length = MIN_LENGTH
        while length < width + wanted["max_new_tokens"]:
            length *= 2
        if (batch, length) not in self._caches:
            self._caches[batch, length] = self._warm(inputs, wanted, length)
        self._caches[batch, length].reset()
        return {"compile_config": self._config, "past_key_values": self._caches[batch, length]}

    def _warm(self, inputs: dict, wanted: dict, length: int) -> Cache:
        """A new cache for `length` tokens, with its steps compiled."""
        from transformers import StaticCache

        cache = StaticCache(config=self._model.config, max_cache_len=length)
        tokens = min(WARM_UP, wanted["max_new_tokens"])
        short = wanted | {"max_new_tokens": tokens, "eos_token_id": None}
        for _ in range(2):
            cache.reset()
            self._model.generate(
                **inputs, **short, compile_config=self._config, past_key_values=cache
            )
        return cache
