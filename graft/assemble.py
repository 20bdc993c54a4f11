"""The one place where a name becomes an object."""

import os
from collections.abc import Callable
from importlib.metadata import version

from graft.decode.engine import Engine
from graft.draft.budget import as_many_as_fit, as_many_as_pay
from graft.draft.drafter import Drafter, NoDraft
from graft.draft.lookup import LookupDrafter
from graft.errors import InputError
from graft.match.ngram import CopyIndex, NgramCounts, NgramIndex
from graft.match.suffix_automaton import SuffixAutomaton
from graft.models.gpu import hold_rows
from graft.models.load import LoadedModel, load_model, memory
from graft.models.prefix_files import PrefixFiles, prefix_folder, rows_key
from graft.models.pretrained import DEFAULT_MODEL
from graft.models.step_costs import StepCosts, costs_for
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
VERIFIERS: dict[str, Verifier] = {"walk": walk, "rejection": rejection}


def make_drafter(name: str) -> Drafter:
    """A preset by its name, with the papers' numbers (METHODS: PLD, CASD, IGPG)."""
    makers: dict[str, Callable[[], Drafter]] = {
        "plain": NoDraft,
        "pld": lambda: LookupDrafter(NgramIndex, as_many_as_fit, nodes=10, calibrated=False),
        "copy": lambda: LookupDrafter(CopyIndex, as_many_as_fit, nodes=20, calibrated=False),
        "igpg": lambda: LookupDrafter(NgramCounts, as_many_as_fit, nodes=7, calibrated=False),
        "auto": lambda: LookupDrafter(SuffixAutomaton, as_many_as_pay, nodes=48, calibrated=True),
    }
    if name not in makers:
        raise InputError(f"unknown draft {name!r}; choose one of {', '.join(PRESETS)}")
    return makers[name]()


def load(  # noqa: PLR0913  every option by its name
    model: str = DEFAULT_MODEL,
    *,
    dtype: str = "auto",
    device: str = "auto",
    draft: str = "auto",
    verifier: str = "walk",
    invariant: bool = False,
    max_batch: int = 16,
    kv_cache: int | None = None,
    prefix_cache: int | None = None,
    disk_cache: int = 0,
) -> Engine:
    """An engine for a model: a known name, a hub id, a folder with safetensors or a GGUF file.

    `dtype` and `device` "auto" take what is fastest here; `draft` names the default preset.
    `invariant` makes drafted and plain output the same bit for bit in every dtype, at a cost; the
    CPU's own kernels always do. Up to `max_batch` requests run at once.

    `kv_cache` is how many bytes keys and values may take. A GPU's cache is allocated at once, by
    default for `max_batch` whole contexts and one more, if there is room; a CPU's grows. In it
    `prefix_cache` bytes of texts read before may be kept for prompts that begin the same: 0 for
    none, None for a tenth of the memory. `disk_cache` is how many bytes of those that
    `Engine.remember` is told to keep may lie on disk.
    """
    if draft not in PRESETS:
        raise InputError(f"unknown draft {draft!r}; choose one of {', '.join(PRESETS)}")
    if verifier not in VERIFIERS:
        raise InputError(f"unknown verifier {verifier!r}; choose one of {', '.join(VERIFIERS)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    loaded = load_model(model, dtype=dtype, device=device, invariant=invariant)
    hold_rows(loaded.model, loaded.device, sequences=max_batch + 1, most_bytes=kv_cache)
    costs = costs_for(loaded.model, loaded.checkpoint.fingerprint, loaded.dtype, loaded.device)
    kept = memory(loaded.device) // 10 if prefix_cache is None else prefix_cache
    if kept:
        loaded.model.prefixes.use(
            most_rows=kept // loaded.model.arena.storage.row_bytes,
            shelf=PrefixFiles(prefix_folder(), _rows_key(loaded), most_bytes=disk_cache)
            if disk_cache
            else None,
        )
    return engine_around(loaded, costs, draft=draft, verifier=verifier, max_batch=max_batch)


def engine_around(
    loaded: LoadedModel,
    costs: StepCosts,
    *,
    draft: str = "auto",
    verifier: str = "walk",
    max_batch: int = 16,
) -> Engine:
    """An engine with every preset around a model that is there already."""
    for index in (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts):
        index.warm_up()
    drafters = {name: make_drafter(name) for name in PRESETS}
    return Engine(
        loaded, drafters, VERIFIERS[verifier], costs, default_draft=draft, max_batch=max_batch
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
