"""The versions of other engines that each plug-in is tested with, and the refusal of others.

A plug-in replaces or calls what an engine does not promise to keep. With another version drafts
could be wrong without an error, so that is one line at start instead.
"""

import os
from dataclasses import dataclass

from graft.errors import InputError

ANYWAY = "GRAFT_UNTESTED"  # =1 allows other versions


@dataclass(frozen=True, slots=True)
class PlugIn:
    """A part of Graft in another engine, and the versions of it, without their last number."""

    name: str
    engine: str
    tested: tuple[str, ...]

    def check(self, version: str) -> None:
        """InputError if this version of the engine is none of those tested."""
        if ".".join(version.split(".")[:2]) in self.tested or os.environ.get(ANYWAY) == "1":
            return
        tested = " and ".join(f"{each}.x" for each in self.tested)
        raise InputError(
            f"{self.name} is tested with {self.engine} {tested}, this is {version}; install a "
            f"tested version, or set {ANYWAY}=1 to try it"
        )


VLLM_HOST = PlugIn("graft.integrations.vllm.Proposer", "vLLM", ("0.24", "0.32"))
VLLM_DEVICE = PlugIn("GRAFT_VLLM=1", "vLLM", ("0.24",))
SGLANG = PlugIn("--speculative-algorithm GRAFT", "SGLang", ("0.5",))
