"""The presets: name, description and maker of every draft, each in one entry; the verifiers' names.

To add a preset, write a maker and add its entry to the group that says what it needs
(docs/drafters.md). Importing this file does not import torch, so makers are named as
"module:attribute" and imported on first use.
"""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from graft.errors import InputError

if TYPE_CHECKING:
    from graft.assemble.resources import DraftResources
    from graft.draft.drafter import Drafter
    from graft.match.suffix_array import Store


@dataclass(frozen=True, slots=True)
class Preset:
    """`maker` names a function or class that takes the DraftResources and returns a Drafter; for
    STORE_PRESETS it also takes the Store."""

    description: str
    maker: str

    def make(self, resources: "DraftResources", *store: "Store") -> "Drafter":
        """A new drafter."""
        return resolve_name(self.maker)(resources, *store)


COPIES, NETWORKS = "graft.assemble.copies", "graft.assemble.networks"

PRESETS: dict[str, Preset] = {
    "auto": Preset(
        "copies from prompt, documents and output, and drafts of a head or draft model if there is "
        "one, limited by the measured step cost",
        f"{NETWORKS}:auto_preset",
    ),
    "plain": Preset("no drafting: one token per step", f"{COPIES}:plain"),
    "pld": Preset("prompt lookup decoding: 3-grams, 10 tokens (Saxena 2023)", f"{COPIES}:pld"),
    "copy": Preset(
        "CASD's copier: the two longest matches up to 10 tokens, 10 tokens each", f"{COPIES}:copy"
    ),
    "igpg": Preset("IDR2's n-gram drafting: 5-grams with back-off, 7 tokens", f"{COPIES}:igpg"),
}  # need nothing but the text
POOL_PRESETS: dict[str, Preset] = {
    "pool": Preset(
        "continuations from earlier answers to requests of the same key, limited by the measured "
        "step cost",
        f"{COPIES}:pooled",
    )
}  # need a pool
SHORT_PRESETS: dict[str, Preset] = {
    "rapid": Preset(
        "a chain of the target, or of a smaller draft model, from retrieved passages of a long "
        "prompt (Chen et al. 2025), its depth limited by the measured step cost unless gamma is "
        "given (the paper's is 10)",
        f"{NETWORKS}:rapid",
    )
}
MODEL_PRESETS: dict[str, Preset] = {
    "sd": Preset(
        "a draft model's chain, its depth limited by the measured step cost (speculative decoding)",
        f"{NETWORKS}:sd",
    ),
    "sd-tree": Preset(
        "a draft model's tree by EAGLE-2's rule, its depth limited by the measured step cost",
        f"{NETWORKS}:sd_tree",
    ),
    "rapid-up": Preset(
        "a larger draft model's chain of 10 tokens from retrieved passages",
        f"{NETWORKS}:rapid_up",
    ),
}  # need a draft model
SELF_PRESETS: dict[str, Preset] = {
    "window": Preset(
        "the target over a window of its own cache: 32 first and 1,024 latest tokens, its depth "
        "limited by the measured step cost",
        f"{NETWORKS}:window",
    ),
    "magicdec": Preset(
        "MagicDec: the target over its 16 first and 241 latest tokens, 3 draft tokens "
        "(Chen et al. 2024)",
        f"{NETWORKS}:magicdec",
    ),
    "magicdec-longspec": Preset(
        "the same over 32 and 1,024, as LongSpec compares with it", f"{NETWORKS}:magicdec_longspec"
    ),
    "magicdec-rapid": Preset(
        "the same over 4 and 4,092, as RAPID compares with it", f"{NETWORKS}:magicdec_rapid"
    ),
    "magicdec-snapkv": Preset(
        "the same over 32 last tokens of the prompt and 225 that they attend to",
        f"{NETWORKS}:magicdec_snapkv",
    ),
    "triforce": Preset(
        "TriForce: copies verified by the target over 4,096 tokens retrieved from its cache, 6 "
        "draft tokens (Sun et al. 2024)",
        f"{NETWORKS}:triforce",
    ),
}  # run the target's own weights
HEAD_PRESETS: dict[str, Preset] = {
    "head": Preset(
        "a draft head's tree, its width and depth limited by the measured step cost",
        f"{NETWORKS}:head",
    ),
    "eagle3": Preset(
        "EAGLE-3's tree: the 9 to 10 best at 8 levels, 59 nodes (Li et al. 2025)",
        f"{NETWORKS}:eagle3",
    ),
    "eagle2": Preset(
        "EAGLE-2's tree: the 10 best at 6 levels, 59 nodes (Li et al. 2024)", f"{NETWORKS}:eagle2"
    ),
    "longspec": Preset(
        "LongSpec's beam: 4, 16, 16, 16, 16 nodes (Yang et al. 2025)", f"{NETWORKS}:longspec"
    ),
    "triforce-head": Preset(
        "TriForce with a draft head's chain as the lowest level", f"{NETWORKS}:triforce_head"
    ),
}  # need a draft head
EITHER_PRESETS: dict[str, Preset] = {
    "casd": Preset(
        "a draft head's or model's tree and CASD's copier, nothing pruned", f"{NETWORKS}:casd"
    ),
    "casd-prompt": Preset(
        "the same with copies from prompt and documents, not from the output",
        f"{NETWORKS}:casd_prompt",
    ),
    "rasd-pld": Preset(
        "a draft head's or model's tree and the retrieved branches that start with one of its 10 "
        "best tokens (RASD)",
        f"{NETWORKS}:rasd_pld",
    ),
}  # need a draft model or a head
STORE_PRESETS: dict[str, Preset] = {
    "store": Preset(
        "continuations from a datastore of `graft index`, limited by the measured step cost",
        f"{COPIES}:stored",
    ),
    "rest": Preset(
        "the same by REST's rule: 5,000 places, 10 tokens, 64 prefixes (He et al. 2023)",
        f"{COPIES}:rest",
    ),
    "rasd-rest": Preset(
        "a draft head's or model's tree and REST's branches that start with one of its 10 best "
        "tokens (RASD)",
        f"{NETWORKS}:rasd_rest",
    ),
}  # need a datastore: its folder stands behind a colon
RETRIEVING = ("rapid", "rapid-up")  # draft from retrieved passages
SAMPLED_PRESETS = ("sd", *RETRIEVING)  # chains with the drafter's distribution q at every node
# The distribution of a drafted position, for the target's p and the drafter's q; phat: see Shift
VERIFIERS: dict[str, str] = {
    "walk": "p, sampled with plain decoding's own noise: the same text",
    "rejection": "p: min(p, q) + (1 - sum min(p, q)) norm(max(p - q, 0))",
    "rapid": "min(q, phat) + (1 - sum min(q, phat)) norm(max(p - phat, p - q, 0))",
    "rapid-phat": "phat: min(q, phat) + (1 - sum min(q, phat)) norm(max(phat - q, 0))",
}


def presets_with(*, draft_model: bool, head: bool) -> dict[str, Preset]:
    """The presets that an engine can make with or without a draft model and a head."""
    return {
        **PRESETS,
        **POOL_PRESETS,
        **SHORT_PRESETS,
        **SELF_PRESETS,
        **(MODEL_PRESETS if draft_model else {}),
        **(HEAD_PRESETS if head else {}),
        **(EITHER_PRESETS if draft_model or head else {}),
    }


def check_draft(name: str, *, draft_model: bool, head: bool = False) -> None:
    """Raise InputError for a draft that cannot be made: a preset, or several joined by +. Whether a
    head is of the right kind is checked when it is loaded."""
    known = presets_with(draft_model=draft_model, head=head)
    for part in name.split("+"):
        preset, _, folder = part.partition(":")
        if preset in MODEL_PRESETS and not draft_model:
            raise InputError(f"draft {part!r} needs a draft model; name one (--draft-model)")
        if preset in HEAD_PRESETS and not head:
            raise InputError(f"draft {part!r} needs a draft head; name its folder (--head)")
        if _needs_either(preset) and not (draft_model or head):
            raise InputError(
                f"draft {part!r} needs a draft model or a head; name one (--draft-model, --head)"
            )
        if preset in STORE_PRESETS and not folder:
            raise InputError(f"draft {preset!r} needs a datastore; name it: {preset}:FOLDER")
        if preset not in STORE_PRESETS and part not in known:
            choices = [*known, *(f"{preset}:FOLDER" for preset in STORE_PRESETS)]
            needed = [each for each in presets_with(draft_model=True, head=True)
                      if each not in known]  # fmt: skip
            more = f"; with --draft-model or --head also {', '.join(needed)}" if needed else ""
            raise InputError(f"unknown draft {part!r}; choose one of {', '.join(choices)}{more}")


def check_verifier(name: str, draft: str) -> None:
    """Raise InputError for an unknown verifier, and for one that cannot use this draft."""
    if name not in VERIFIERS:
        raise InputError(f"unknown verifier {name!r}; choose one of {', '.join(VERIFIERS)}")
    if name.startswith("rapid") and draft not in SAMPLED_PRESETS:
        raise InputError(
            f"verifier {name!r} needs a chain sampled from a model, and draft {draft!r} is not "
            f"one; choose one of {', '.join(SAMPLED_PRESETS)} (--draft)"
        )


def retrieves(name: str) -> bool:
    """Whether a draft, or one of those it joins, drafts from retrieved passages."""
    return any(part in RETRIEVING for part in name.split("+"))


def runs_network(part: str) -> bool:
    """Whether a preset, perhaps with the folder of a datastore, runs a network."""
    preset = part.partition(":")[0]
    own = SHORT_PRESETS | MODEL_PRESETS | SELF_PRESETS | HEAD_PRESETS
    return preset in own or _needs_either(preset)


def _needs_either(preset: str) -> bool:
    return preset in EITHER_PRESETS or preset == "rasd-rest"
