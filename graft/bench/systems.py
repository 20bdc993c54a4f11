"""What can be measured: Graft's presets, and other engines in environments of their own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class System:
    """`engine` names its worker script; `method` is what that script is asked for."""

    name: str
    engine: str
    method: str
    drafts: bool = True
    per_request: bool = True  # the method may change from one request to the next
    batches: bool = True  # several prompts at a time

    @property
    def process(self) -> str:
        """Systems of one name here share a worker process."""
        return self.engine if self.per_request else self.name


def graft_system(preset: str) -> System:
    """A preset of Graft; all presets share one worker."""
    return System(preset, "graft", preset, drafts=preset != "plain")


PEERS: dict[str, System] = {
    peer.name: peer
    for peer in (
        System("hf", "hf", "plain", drafts=False),
        System("hf-pld", "hf", "pld", batches=False),
        System("hf-compile", "hf", "compile", drafts=False, per_request=False),
        System("vllm", "vllm", "plain", drafts=False, per_request=False),
        System("vllm-ngram", "vllm", "ngram", per_request=False),
        System("llama", "llama", "plain", drafts=False, per_request=False, batches=False),
        System("llama-pld", "llama", "pld", per_request=False, batches=False),
    )
}
