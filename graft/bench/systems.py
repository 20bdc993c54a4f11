"""What can be measured: Graft's presets, and other engines in environments of their own.

A preset may name the rule that decides what is kept of its drafts, PRESET@VERIFIER, and how strong
that rule is, PRESET@VERIFIER:ETA, as in `sd@rejection` or `rapid@rapid:20`. `rag` decodes plainly
from a prompt that retrieval has shortened, `rag+copy` drafts from it too.
"""

from dataclasses import dataclass

RAG = "rag"
WALK = "walk"
# What an answer has in common with plain decoding's, by the rule that kept it; all else changes it.
KEPT = {WALK: "text", "rejection": "distribution"}
NOTHING_KEPT = "nothing"


@dataclass(frozen=True, slots=True)
class System:
    """`engine` names its worker script; `method` is what that script is asked for."""

    name: str
    engine: str
    method: str
    drafts: bool = True
    per_request: bool = True  # the method may change from one request to the next
    batches: bool = True  # several prompts at a time
    verifier: str = WALK  # with its strength behind a colon

    @property
    def process(self) -> str:
        """Systems of one name here share a worker process."""
        if not self.per_request:
            return self.name
        return self.engine if self.verifier == WALK else f"{self.engine}@{self.verifier}"

    @property
    def shortens(self) -> bool:
        """Whether its prompts are shortened by retrieval."""
        return self.method.partition("+")[0] == RAG

    @property
    def keeps(self) -> str:
        """What its answers have in common with the model's own: "text", "distribution", "nothing";
        "" of engines that do not promise Graft's."""
        if self.engine != "graft":
            return ""
        return NOTHING_KEPT if self.shortens else KEPT.get(self.verifier, NOTHING_KEPT)


def graft_system(name: str) -> System:
    """A preset of Graft; all presets share one worker, but for those with a rule of their own."""
    preset, _, verifier = name.partition("@")
    drafts = preset not in ("plain", RAG)
    return System(name, "graft", preset, drafts=drafts, verifier=verifier or WALK)


def preset_of(method: str) -> str:
    """Who drafts: of `rag+copy` copy, of `rag` nobody."""
    first, _, rest = method.partition("+")
    return (rest or "plain") if first == RAG else method


PEERS: dict[str, System] = {
    peer.name: peer
    for peer in (
        System("hf", "hf", "plain", drafts=False),
        System("hf-pld", "hf", "pld", batches=False),
        System("hf-assisted", "hf", "assisted", batches=False),
        System("hf-compile", "hf", "compile", drafts=False, per_request=False),
        System("vllm", "vllm", "plain", drafts=False, per_request=False),
        System("vllm-ngram", "vllm", "ngram", per_request=False),
        System("vllm-suffix", "vllm", "suffix", per_request=False),
        System("vllm-graft", "vllm", "graft", per_request=False),
        System("llama", "llama", "plain", drafts=False, per_request=False, batches=False),
        System("llama-pld", "llama", "pld", per_request=False, batches=False),
        System("llama-draft", "llama", "draft", per_request=False, batches=False),
    )
}

# options without which a peer has nothing to run
NEEDED = {
    "hf-assisted": ("draft_model",),
    "llama": ("gguf",),
    "llama-pld": ("gguf",),
    "llama-draft": ("gguf", "draft_gguf"),
}
OPTIONS = {
    "gguf": "--gguf: the model's weights as a GGUF file",
    "draft_gguf": "--draft-gguf: a smaller model's GGUF file",
    "draft_model": "--draft-model: a smaller model with the same tokenizer",
}


def lacks(peer: str, given: frozenset[str]) -> str | None:
    """What a peer needs and was not given, ready to be said."""
    return next((OPTIONS[name] for name in NEEDED.get(peer, ()) if name not in given), None)
