"""The one place where a name becomes an object."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from graft.decode.engine import Engine
from graft.draft.budget import as_many_as_fit, as_many_as_pay
from graft.draft.calibration import STORE_PRIOR
from graft.draft.combined import AtOnce, Combined, Guide, GuidedByModel, everything, what_pays
from graft.draft.drafter import Drafter, NoDraft
from graft.draft.growth import ChainGrowth, TreeGrowth
from graft.draft.head import BEAMS, EAGLE_NODES, HeadDrafter, HeadHelper, growth_for
from graft.draft.head_costs import head_costs
from graft.draft.head_overhead import with_overhead as with_head_overhead
from graft.draft.head_warm import warm_shapes
from graft.draft.lookup import LookupDrafter
from graft.draft.model import UNCERTAIN, Helper, ModelDrafter
from graft.draft.overhead import with_overhead
from graft.errors import InputError
from graft.match.ngram import CopyIndex, NgramCounts, NgramIndex
from graft.match.rest import RestIndex
from graft.match.store_warm_up import warm_up
from graft.match.suffix_array import Store, open_store
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint
from graft.models.gpu import hold_rows
from graft.models.heads.config import KINDS
from graft.models.heads.load import AUTO_HEAD, find_heads, may_have_head
from graft.models.heads.runner import HeadRunner
from graft.models.load import LoadedModel, load_model, memory
from graft.models.prefix_files import PrefixFiles, prefix_folder, rows_key
from graft.models.same_tokens import check_same_tokens
from graft.models.step_costs import StepCosts, costs_are_given, costs_for
from graft.verify.rejection import rejection
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

PRESETS: dict[str, str] = {
    "auto": "copies from prompt, documents and output, as many as pay on this machine",
    "plain": "no drafting: one token per step",
    "pld": "prompt lookup decoding: 3-grams, 10 tokens (Saxena 2023)",
    "copy": "CASD's copier: the two longest matches up to 10 tokens, 10 tokens each",
    "igpg": "IDR2's n-gram drafting: 5-grams with back-off, 7 tokens",
}
MODEL_PRESETS: dict[str, str] = {
    "sd": "a draft model's chain, as deep as pays (speculative decoding)",
    "sd-tree": "a draft model's tree by EAGLE-2's rule, as deep as pays",
}
HEAD_PRESETS: dict[str, str] = {
    "head": "a draft head's tree, as wide and deep as pays",
    "eagle2": "EAGLE-2's tree: the 10 best at 6 levels, 59 nodes (Li et al. 2024)",
    "longspec": "LongSpec's beam: 4, 16, 16, 16, 16 nodes (Yang et al. 2025)",
}
EITHER_PRESETS: dict[str, str] = {
    "casd": "a draft head's or model's tree and CASD's copier, nothing pruned",
    "rasd-pld": "a draft head's or model's tree and retrieved branches that it holds likely (RASD)",
}
STORE_PRESETS: dict[str, str] = {
    "store": "what followed in a datastore of `graft index`, as many as pay",
    "rest": "the same by REST's choice: 5,000 places, 10 tokens, 64 prefixes (He et al. 2023)",
    "rasd-rest": "a draft head's or model's tree and REST's branches that it holds likely (RASD)",
}  # each with the store's folder behind a colon
VERIFIERS: dict[str, Verifier] = {"walk": walk, "rejection": rejection}
CHAIN = ChainGrowth(depth=8)
EAGLE_TREE = TreeGrowth(depth=6, width=10)  # EAGLE-2's numbers, with EAGLE_NODES


@dataclass(frozen=True, slots=True)
class Helpers:
    """Networks that guess: a smaller model, and heads by their kind, the favourite first."""

    model: Helper | None = None
    heads: Mapping[str, HeadHelper] = field(default_factory=dict)

    @property
    def head(self) -> HeadHelper | None:
        """The favourite."""
        return next(iter(self.heads.values()), None)

    @property
    def presets(self) -> dict[str, str]:
        """What can be made with them."""
        kinds = {
            name for name in HEAD_PRESETS if name in self.heads or (name == "head" and self.heads)
        }
        return {
            **PRESETS,
            **(MODEL_PRESETS if self.model else {}),
            **{name: text for name, text in HEAD_PRESETS.items() if name in kinds},
            **(EITHER_PRESETS if self.model or self.heads else {}),
        }


def check_draft(name: str, *, draft_model: bool, head: bool = False) -> None:
    """Refuse a draft that cannot be made: a preset, or several joined by +. Whether the head there
    may be is of the right kind is seen when it is loaded."""
    with_model = MODEL_PRESETS if draft_model else {}
    with_either = EITHER_PRESETS if draft_model or head else {}
    known = {**PRESETS, **with_model, **(HEAD_PRESETS if head else {}), **with_either}
    for part in name.split("+"):
        preset, _, folder = part.partition(":")
        if preset in MODEL_PRESETS and not draft_model:
            raise InputError(f"draft {part!r} needs a draft model; name one (--draft-model)")
        if preset in HEAD_PRESETS and not head:
            raise InputError(f"draft {part!r} needs a draft head; name its folder (--head)")
        if _needs_network(part) and not (draft_model or head):
            raise InputError(
                f"draft {part!r} needs a draft model or a head; name one (--draft-model, --head)"
            )
        if preset in STORE_PRESETS and not folder:
            raise InputError(f"draft {preset!r} needs a datastore; name it: {preset}:FOLDER")
        if preset not in STORE_PRESETS and part not in known:
            stores = [f"{preset}:FOLDER" for preset in STORE_PRESETS]
            raise InputError(
                f"unknown draft {part!r}; choose one of {', '.join([*known, *stores])}"
            )


def _needs_network(part: str) -> bool:
    several = MODEL_PRESETS | HEAD_PRESETS | EITHER_PRESETS
    return part in several or part.startswith("rasd-rest")


def make_drafter(
    name: str, helpers: Helpers | None = None, find_store: Callable[[str], Store] | None = None
) -> Drafter:
    """A preset by its name, with the papers' numbers (METHODS: PLD, CASD, IGPG, REST, RASD), or
    several presets joined by +, of whose guesses as many are taken as pay."""
    helpers = helpers or Helpers()
    check_draft(name, draft_model=helpers.model is not None, head=bool(helpers.heads))
    parts = name.split("+")
    if len(parts) > 1:
        parts.sort(key=_needs_network)  # cheap ones first: see Combined
        made = [make_drafter(part, helpers, find_store) for part in parts]
        return Combined(made, prune=what_pays)
    preset, _, folder = name.partition(":")
    if preset in STORE_PRESETS:
        assert find_store is not None, "nobody to open a datastore"
        return _with_store(preset, find_store(folder), helpers)
    if preset in KINDS and preset not in helpers.heads:
        there = ", ".join(helpers.heads)
        raise InputError(f"draft {preset!r} needs a head of that kind; the one here is {there}")
    makers = {**_lookups(), **_with_model(helpers), **_with_head(helpers)}
    return makers[name]()


def _with_store(preset: str, store: Store, helpers: Helpers) -> Drafter:
    if preset == "store":
        return LookupDrafter(
            store.index, as_many_as_pay, nodes=48, calibrated=True, prior=STORE_PRIOR
        )
    rest = LookupDrafter(lambda: RestIndex(store), as_many_as_fit, nodes=64, calibrated=False)
    if preset == "rest":
        return rest
    network = _paper_tree(helpers)
    return Combined([rest, network], prune=GuidedByModel([rest], network), ask=AtOnce())


def _paper_tree(helpers: Helpers) -> Guide:
    """The tree of a head, else of a draft model, with its paper's numbers."""
    if helpers.head:
        return _head_drafter(helpers.head)
    return ModelDrafter(helpers.model, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=False)


def _head_drafter(head: HeadHelper) -> HeadDrafter:
    """By its paper's numbers."""
    beam, nodes = BEAMS[head.runner.config.kind]
    return HeadDrafter(head, beam, nodes=nodes)


def _lookups() -> dict[str, Callable[[], Drafter]]:
    return {
        "plain": NoDraft,
        "pld": lambda: LookupDrafter(NgramIndex, as_many_as_fit, nodes=10, calibrated=False),
        "copy": lambda: LookupDrafter(CopyIndex, as_many_as_fit, nodes=20, calibrated=False),
        "igpg": lambda: LookupDrafter(NgramCounts, as_many_as_fit, nodes=7, calibrated=False),
        "auto": lambda: LookupDrafter(SuffixAutomaton, as_many_as_pay, nodes=48, calibrated=True),
    }


def _with_model(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What a draft model adds; `auto` uses it too, where it pays."""
    lookups, helper = _lookups(), helpers.model
    if helper is None:
        return {}

    def chain(reward: float = 0.0) -> ModelDrafter:
        return ModelDrafter(helper, CHAIN, nodes=CHAIN.depth, adaptive=True, reward=reward)

    return {
        "auto": lambda: Combined([lookups["auto"](), chain(UNCERTAIN)], prune=what_pays),
        "sd": chain,
        "sd-tree": lambda: ModelDrafter(helper, EAGLE_TREE, nodes=EAGLE_NODES, adaptive=True),
        **_with_either(helpers),
    }


def _with_head(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    """What heads add; `auto` uses the favourite where it pays, rather than a draft model."""
    lookups, head = _lookups(), helpers.head
    if head is None:
        return {}

    def paying() -> HeadDrafter:
        return HeadDrafter(head, nodes=EAGLE_NODES)

    return {
        "auto": lambda: Combined([lookups["auto"](), paying()], prune=what_pays),
        "head": paying,
        **{kind: partial(_head_drafter, each) for kind, each in helpers.heads.items()},
        **_with_either(helpers),
    }


def _with_either(helpers: Helpers) -> dict[str, Callable[[], Drafter]]:
    copier = _lookups()["copy"]
    return {
        "casd": lambda: Combined([copier(), _paper_tree(helpers)], prune=everything, ask=AtOnce()),
        "rasd-pld": lambda: _rasd(_paper_tree(helpers)),
    }


def _rasd(network: Guide) -> Combined:
    """RASD over prompt lookup: up to four places, five tokens of match, eight of continuation."""
    retrieval = LookupDrafter(
        lambda: CopyIndex(max_match=5, min_match=2, branches=4, length=8),
        as_many_as_fit,
        nodes=32,
        calibrated=False,
    )
    return Combined([retrieval, network], prune=GuidedByModel([retrieval], network), ask=AtOnce())


class Drafters(dict[str, Drafter]):
    """The presets by name; compositions and datastores are made when they are first asked for."""

    def __init__(self, helpers: Helpers | None = None, tokenizer: "Any" = None) -> None:  # noqa: ANN401
        self.helpers, self._tokenizer = helpers or Helpers(), tokenizer
        self._stores: dict[str, Store] = {}
        made = {name: make_drafter(name, self.helpers) for name in self.helpers.presets}
        super().__init__(made)

    def __missing__(self, name: str) -> Drafter:
        """InputError where there is nothing of that name."""
        return self.setdefault(name, make_drafter(name, self.helpers, self.store))

    def shelve(self, name: str, store: Store) -> None:
        """From now on `store:NAME` drafts from this one."""
        self._stores[name] = store

    def forget(self, name: str) -> None:
        """Let go of a store and of the drafters that use it; those at work keep it to the end."""
        self._stores.pop(name, None)
        for draft in list(self):
            if any(part.partition(":")[2] == name for part in draft.split("+")):
                self.pop(draft, None)

    def store(self, folder: str) -> Store:
        """The datastore in a folder, if it was made with the target's tokenizer."""
        if folder not in self._stores:
            if self._tokenizer is None:
                raise InputError("a datastore needs a model with a tokenizer")
            store = open_store(folder, tokenizer_fingerprint(self._tokenizer))
            warm_up(store.border)
            self._stores[folder] = store
        return self._stores[folder]


def load(  # noqa: PLR0913  every option by its name
    model: str = DEFAULT_MODEL,
    *,
    draft_model: str | None = None,
    head: str | None = AUTO_HEAD,
    dtype: str = "auto",
    device: str = "auto",
    draft: str = "auto",
    verifier: str = "walk",
    invariant: bool = False,
    max_batch: int = 16,
    kv_cache: int | None = None,
    prefix_cache: int | None = None,
    disk_cache: int = 0,
    warm: bool = False,
) -> Engine:
    """An engine for a model: a known name, a hub id, a folder with safetensors or a GGUF file.

    `draft_model` is a smaller model with the same tokenizer that guesses ahead, for the presets
    that need one; `auto` then uses it where it pays. `head` is the folder of a draft head that was
    trained for the model (`graft train`); "auto" takes those that are installed for it, None none.
    `dtype` and `device` "auto" take what is fastest here; `draft` names the default preset, or
    several joined by +. `invariant` makes drafted and plain output the same bit for bit in every
    dtype, at a cost; the CPU's own kernels always do. Up to `max_batch` requests run at once.

    `kv_cache` is how many bytes keys and values may take. A GPU's cache is allocated at once, by
    default for `max_batch` whole contexts and one more, if there is room; a CPU's grows. In it
    `prefix_cache` bytes of texts read before may be kept for prompts that begin the same: 0 for
    none, None for a tenth of the memory. `disk_cache` is how many bytes of those that
    `Engine.remember` is told to keep may lie on disk.

    `warm` captures a GPU's graphs of every size now, not when a request first needs one.
    """
    check_draft(draft, draft_model=draft_model is not None, head=may_have_head(head))
    if verifier not in VERIFIERS:
        raise InputError(f"unknown verifier {verifier!r}; choose one of {', '.join(VERIFIERS)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    loaded = load_model(model, dtype=dtype, device=device, invariant=invariant)
    drafting = _load_draft_model(draft_model, loaded, dtype) if draft_model else None
    both = [loaded, drafting] if drafting else [loaded]
    bytes_of_both = sum(each.model.arena.storage.row_bytes for each in both)
    for each in both:
        share = each.model.arena.storage.row_bytes / bytes_of_both
        most_bytes = None if kv_cache is None else int(kv_cache * share)
        hold_rows(each.model, each.device, sequences=max_batch + 1, most_bytes=most_bytes)
    if warm:
        for each in both:
            each.model.warm_up()
    costs = _costs(loaded)
    kept = memory(loaded.device) // 10 if prefix_cache is None else prefix_cache
    if kept:
        shelf = PrefixFiles(prefix_folder(), _rows_key(loaded), most_bytes=disk_cache)
        loaded.model.prefixes.use(
            most_rows=kept // bytes_of_both, shelf=shelf if disk_cache else None
        )
    helper = None
    if drafting:
        if kept:
            drafting.model.prefixes.use(most_rows=kept // bytes_of_both)
        helper = with_overhead(Helper(drafting.model, _costs(drafting), loaded.model.vocabulary))
    heads = {
        runner.config.kind: _head_helper(runner, loaded, sequences=max_batch + 1)
        for runner in find_heads(head, loaded)
    }
    helpers = Helpers(helper, heads)
    return engine_around(
        loaded, costs, helpers=helpers, draft=draft, verifier=verifier, max_batch=max_batch
    )


def _head_helper(runner: HeadRunner, target: LoadedModel, *, sequences: int) -> HeadHelper:
    if runner.device.type == "cuda":  # captured graphs read rows where they lie
        runner.hold(sequences)
    growth = growth_for(runner)
    fingerprint, dtype = target.checkpoint.fingerprint, target.dtype
    costs = head_costs(runner, growth, fingerprint, dtype)
    clock = None if costs_are_given() else time.perf_counter
    helper = HeadHelper(runner, growth, costs, clock=clock)
    if runner.device.type == "cuda":
        warm_shapes(helper)
    return with_head_overhead(helper, fingerprint, dtype)


def _load_draft_model(name: str, target: LoadedModel, dtype: str) -> LoadedModel:
    loaded = load_model(name, dtype=dtype, device=target.device)
    check_same_tokens(target, loaded)
    return loaded


def _costs(loaded: LoadedModel) -> StepCosts:
    return costs_for(loaded.model, loaded.checkpoint.fingerprint, loaded.dtype, loaded.device)


def engine_around(
    loaded: LoadedModel,
    costs: StepCosts,
    *,
    helpers: Helpers | None = None,
    draft: str = "auto",
    verifier: str = "walk",
    max_batch: int = 16,
) -> Engine:
    """An engine with every preset around a model, and those who help it, that are there already."""
    for index in (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts):
        index.warm_up()
    drafters = Drafters(helpers, loaded.tokenizer)
    if draft not in drafters:
        drafters[draft]  # InputError where it cannot be made
    return Engine(
        loaded,
        drafters,
        VERIFIERS[verifier],
        costs,
        default_draft=draft,
        max_batch=max_batch,
    )


def _rows_key(loaded: LoadedModel) -> str:
    """Everything the rows of a text depend on besides the text."""
    return rows_key(
        loaded.checkpoint.fingerprint,
        loaded.dtype,
        loaded.forward_name,
        type(loaded.model.forward).__name__,
        loaded.device.partition(":")[0],
        version("transformers"),  # it reads the config
    )
