"""The presets: name, maker and needs of every draft; the verifiers' names.

To add a preset, write a maker and add its entry to `PRESETS` (docs/drafters.md). Importing this
file does not import torch, so makers are named as "module:attribute" and imported on first use. A
maker's docstring describes the preset.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from graft.errors import InputError

if TYPE_CHECKING:
    from graft.assemble.resources import DraftResources
    from graft.draft.drafter import Drafter
    from graft.match.suffix_array import Store

# What a preset may need, and how to get it
POOL, TOKENIZER, TARGET, MODEL = "pool", "tokenizer", "target", "model"
HEAD, MTP, NETWORK, STORE = "head", "mtp", "network", "store"
NEEDS = {
    POOL: "a pool; enable it (--pool)",
    TOKENIZER: "a model with a tokenizer",
    TARGET: "the target itself; use its engine",
    MODEL: "a draft model; name one (--draft-model)",
    HEAD: "a draft head; name its folder (--head)",
    MTP: "a model with MTP layers that Graft runs (--head auto); use one that has them",
    NETWORK: "a draft model or a head; name one (--draft-model, --head)",
    STORE: "a datastore; name it: {preset}:FOLDER",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """`maker` names a function or class that takes the DraftResources, and the Store where one is
    needed, and returns a Drafter. The first of `needs` is the group of the preset."""

    maker: str
    needs: tuple[str, ...] = ()

    def make(self, resources: "DraftResources", *store: "Store") -> "Drafter":
        """A new drafter."""
        return resolve_name(self.maker)(resources, *store)


COPIES, NETWORKS = "graft.assemble.copies", "graft.assemble.networks"

PRESETS: dict[str, Preset] = {
    "auto": Preset(f"{NETWORKS}:auto_preset"),
    "plain": Preset(f"{COPIES}:plain"),
    "pld": Preset(f"{COPIES}:pld"),
    "copy": Preset(f"{COPIES}:copy"),
    "igpg": Preset(f"{COPIES}:igpg"),
    "pool": Preset(f"{COPIES}:pooled", (POOL,)),
    "rapid": Preset(f"{NETWORKS}:rapid", (TOKENIZER,)),
    "window": Preset(f"{NETWORKS}:window", (TARGET,)),
    "magicdec": Preset(f"{NETWORKS}:magicdec", (TARGET,)),
    "magicdec-longspec": Preset(f"{NETWORKS}:magicdec_longspec", (TARGET,)),
    "magicdec-rapid": Preset(f"{NETWORKS}:magicdec_rapid", (TARGET,)),
    "magicdec-snapkv": Preset(f"{NETWORKS}:magicdec_snapkv", (TARGET,)),
    "triforce": Preset(f"{NETWORKS}:triforce", (TARGET,)),
    "sd": Preset(f"{NETWORKS}:sd", (MODEL,)),
    "sd-tree": Preset(f"{NETWORKS}:sd_tree", (MODEL,)),
    "rapid-up": Preset(f"{NETWORKS}:rapid_up", (MODEL, TOKENIZER)),
    "head": Preset(f"{NETWORKS}:head", (HEAD,)),
    "eagle3": Preset(f"{NETWORKS}:eagle3", (HEAD,)),
    "eagle2": Preset(f"{NETWORKS}:eagle2", (HEAD,)),
    "longspec": Preset(f"{NETWORKS}:longspec", (HEAD,)),
    "mtp": Preset(f"{NETWORKS}:mtp", (MTP,)),
    "triforce-head": Preset(f"{NETWORKS}:triforce_head", (HEAD, TARGET)),
    "casd": Preset(f"{NETWORKS}:casd", (NETWORK,)),
    "casd-prompt": Preset(f"{NETWORKS}:casd_prompt", (NETWORK,)),
    "rasd-pld": Preset(f"{NETWORKS}:rasd_pld", (NETWORK,)),
    "store": Preset(f"{COPIES}:stored", (STORE,)),
    "rest": Preset(f"{COPIES}:rest", (STORE,)),
    "rasd-rest": Preset(f"{NETWORKS}:rasd_rest", (STORE, NETWORK)),
}
SAMPLED_PRESETS = ("sd", "rapid", "rapid-up")  # chains with the drafter's q at every node
SELF_PRESETS = tuple(name for name, preset in PRESETS.items() if TARGET in preset.needs)
CHAIN_PRESETS = SAMPLED_PRESETS + SELF_PRESETS  # with gamma
VERIFIERS = ("walk", "rejection", "rapid", "rapid-phat")  # see graft/verify


def presets_of(need: str = "") -> list[str]:
    """The presets whose first need is this one; by default those that need only the text."""
    return [name for name, preset in PRESETS.items() if need == next(iter(preset.needs), "")]


def check_draft(name: str, *, draft_model: bool, head: bool = False) -> None:
    """Raise InputError for a draft that cannot be made: a preset, or several joined by +. Whether a
    head is of the right kind is checked when it is loaded."""
    given = {POOL, TOKENIZER, TARGET}
    given |= {MODEL, NETWORK} if draft_model else set()
    check_needs(name, given | ({HEAD, MTP, NETWORK} if head else set()))


def check_needs(name: str, given: Collection[str]) -> None:
    """The same for whatever is given."""
    for part in name.split("+"):
        preset, _, folder = part.partition(":")
        needs = PRESETS[preset].needs if preset in PRESETS else ()
        if preset not in PRESETS or (folder and STORE not in needs):
            raise InputError(f"unknown draft {part!r}; {_choices(given)}")
        for need in sorted(needs, key=lambda need: need == STORE):
            if need not in given and not (need == STORE and folder):
                raise InputError(f"draft {part!r} needs {NEEDS[need].format(preset=preset)}")


def _choices(given: Collection[str]) -> str:
    known = [name for name, preset in PRESETS.items() if set(preset.needs) <= {*given}]
    stores = [f"{name}:FOLDER" for name in presets_of(STORE)]
    others = [name for name in PRESETS if name not in (*known, *presets_of(STORE))]
    more = f"; with --draft-model or --head also {', '.join(others)}" if others else ""
    return f"choose one of {', '.join([*known, *stores])}{more}"


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
    return any(TOKENIZER in PRESETS[part].needs for part in name.split("+") if part in PRESETS)


def runs_network(part: str) -> bool:
    """Whether a preset, perhaps with the folder of a datastore, runs a network."""
    preset = PRESETS.get(part.partition(":")[0])
    networks = {TOKENIZER, TARGET, MODEL, HEAD, MTP, NETWORK}
    return preset is not None and not networks.isdisjoint(preset.needs)
