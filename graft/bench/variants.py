"""What can be measured: draft presets of Graft, and other engines in environments of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graft.bench.decoding import INEXACT, OTHER_ENGINE, PLAIN, SAME_DISTRIBUTION, SAME_TEXT
from graft.errors import InputError

GRAFT = "graft"
EXACTNESS = {"walk": SAME_TEXT, "rejection": SAME_DISTRIBUTION}  # by verifier; others are inexact


@dataclass(frozen=True, slots=True)
class Variant:
    """`engine` names the worker, `method` its way of decoding, `options` those of its requests."""

    name: str
    engine: str
    method: str
    drafts: bool = True
    per_request: bool = True  # the method may change from one request to the next
    batches: bool = True  # the engine takes several prompts at once
    exactness: str = OTHER_ENGINE
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def process(self) -> str:
        """Variants with the same value share a worker process."""
        return self.engine if self.per_request else self.name


def preset(name: str, verifier: str = "walk") -> Variant:
    """A draft preset of Graft."""
    exactness = EXACTNESS.get(verifier, INEXACT)
    return Variant(name, GRAFT, name, drafts=name != PLAIN, exactness=exactness)


ENGINES: dict[str, Variant] = {
    each.name: each
    for each in (
        Variant("transformers", "transformers", "plain", drafts=False),
        Variant("transformers-lookup", "transformers", "lookup", batches=False),
        Variant("transformers-assisted", "transformers", "assisted", batches=False),
        Variant(
            "transformers-compiled", "transformers", "compiled", drafts=False, per_request=False
        ),
        Variant("vllm", "vllm", "plain", drafts=False, per_request=False),
        Variant("vllm-ngram", "vllm", "ngram", per_request=False),
        Variant("vllm-ngram-gpu", "vllm", "ngram_gpu", per_request=False),
        Variant("vllm-suffix", "vllm", "suffix", per_request=False),
        Variant("vllm-graft", "vllm", "graft", per_request=False),
        Variant("vllm-graft-gpu", "vllm", "graft_gpu", per_request=False),
        Variant("llama.cpp", "llama_cpp", "plain", drafts=False, per_request=False, batches=False),
        Variant("llama.cpp-lookup", "llama_cpp", "lookup", per_request=False, batches=False),
    )
}
GGUF = "gguf", "--gguf: the model's weights as a GGUF file"
# The option without which a variant cannot run: its field and what it is
NEEDED = {
    "transformers-assisted": (
        "draft_model",
        "--draft-model: a smaller model with the same tokenizer",
    ),
    "llama.cpp": GGUF,
    "llama.cpp-lookup": GGUF,
}


def engine_variant(name: str, given: frozenset[str]) -> Variant:
    """A variant of another engine; InputError where it is unknown or an option is missing."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; choose from {', '.join(ENGINES)}")
    if name in NEEDED and NEEDED[name][0] not in given:
        raise InputError(f"{name} needs {NEEDED[name][1]}")
    return ENGINES[name]
