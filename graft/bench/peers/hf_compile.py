"""transformers with a static cache and compiled decoding steps, as its documentation advises.

A compiled step fits one batch size and one length of the cache, and its CUDA graphs one place in
memory: so caches are kept, their lengths are few, and each is warmed up before it is timed.
"""

import importlib.util
import os
import shutil

SHORTEST = 512  # tokens a cache holds; longer ones double
WARM_UP = 16  # tokens: compiling, recording and replaying each take a few steps
KINDS = 64  # compiled versions that torch may keep


def refuse_without_compiler(device: str) -> None:
    """torch.compile writes C++ on a CPU; on a GPU Triton, whose launchers are C."""
    if device.startswith("cuda") and importlib.util.find_spec("triton") is None:
        raise SystemExit("hf-compile needs Triton, which is not installed beside this torch")
    named = os.environ.get("CC" if device.startswith("cuda") else "CXX")
    known = ("gcc", "clang", "cc") if device.startswith("cuda") else ("g++", "clang++", "c++")
    if not any(map(shutil.which, (named,) if named else known)):
        raise SystemExit(f"hf-compile needs a compiler, one of {', '.join(known)}: torch.compile")


class Compiled:
    """Options of `generate` that make it compile, with a cache of the right size."""

    def __init__(self, model: object, mode: str) -> None:
        import torch
        from transformers import CompileConfig

        torch._dynamo.config.recompile_limit = KINDS
        self._model = model
        self._config = CompileConfig(mode=mode, dynamic=False)
        self._config._compile_all_devices = True  # else transformers compiles on GPUs alone
        self._caches: dict[tuple[int, int], object] = {}

    def options(self, inputs: dict, wanted: dict) -> dict:
        """For these inputs and the other options; warms up what was not compiled before."""
        batch, width = inputs["inputs"].shape
        room = SHORTEST
        while room < width + wanted["max_new_tokens"]:
            room *= 2
        if (batch, room) not in self._caches:
            self._caches[batch, room] = self._warm(inputs, wanted, room)
        self._caches[batch, room].reset()
        return {"compile_config": self._config, "past_key_values": self._caches[batch, room]}

    def _warm(self, inputs: dict, wanted: dict, room: int) -> object:
        """A new cache for `room` tokens, its steps compiled."""
        from transformers import StaticCache

        cache = StaticCache(config=self._model.config, max_cache_len=room)
        few = min(WARM_UP, wanted["max_new_tokens"])
        short = wanted | {"max_new_tokens": few, "eos_token_id": None}
        for _ in range(2):
            cache.reset()
            self._model.generate(
                **inputs, **short, compile_config=self._config, past_key_values=cache
            )
        return cache
