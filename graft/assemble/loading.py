"""From the names of models to an engine."""

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from graft.assemble.copies import INDEXES
from graft.assemble.drafters import Drafters
from graft.assemble.heads import Heads, machine_clock
from graft.assemble.presets import check_draft, retrieves
from graft.assemble.resources import DraftResources
from graft.assemble.verifiers import chains_for, check_verifier, make_verifier
from graft.decode.engine import Engine
from graft.draft.copies import build_tree
from graft.draft.copies.calibration import Calibration
from graft.draft.models.model import DraftModel
from graft.draft.models.overhead import with_overhead
from graft.draft.pacing import budget
from graft.draft.short_context.retrieved import DEFAULT_BUDGET, DEFAULT_RETRIEVER, Retrieval
from graft.errors import InputError
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.gpu import hold_rows
from graft.models.heads.load import AUTO_HEAD, find_heads, may_have_head
from graft.models.load import LoadedModel, load_model, memory
from graft.models.prefix_files import PrefixFiles, prefix_folder, rows_key
from graft.models.same_tokens import check_same_tokens
from graft.models.step_costs import StepCosts, costs_for
from graft.verify.rapid import Shift
from graft.verify.verdict import Verifier
from graft.verify.walk import walk


def load(  # noqa: PLR0913  every option by its name
    model: str = DEFAULT_MODEL,
    *,
    draft_model: str | None = None,
    draft_device: str | None = None,
    head: str | None = AUTO_HEAD,
    dtype: str = "auto",
    device: str = "auto",
    context_length: int | None = None,
    draft: str = "auto",
    gamma: int | None = None,
    confidence: float = 0.0,
    retriever: str = DEFAULT_RETRIEVER,
    retrieved: int | str = DEFAULT_BUDGET,
    verifier: str = "walk",
    shift: Shift | None = None,
    invariant: bool = False,
    max_batch: int = 16,
    kv_cache: int | None = None,
    prefix_cache: int | None = None,
    disk_cache: int = 0,
    warm: bool = True,
) -> Engine:
    """An engine for a model: a known name, a hub id, a folder with safetensors or a GGUF file.

    `draft_model` is another model with the same tokenizer that guesses ahead, for the presets
    that need one, on `draft_device` if not on the model's own; `auto` then uses it where it pays.
    Its chains have `gamma` tokens, by default as many as pay, and end with the first that it gives
    less than `confidence`. `head` is the folder of a draft head that was
    trained for the model (`graft train`); "auto" takes those that are installed for it, None none.
    `dtype` and `device` "auto" take what is fastest here; `draft` names the default preset, or
    several joined by +. `invariant` makes drafted and plain output the same bit for bit in every
    dtype, at a cost; the CPU's own kernels always do. Up to `max_batch` requests run at once.

    `context_length` is how many tokens prompt and answer may have: fewer than the model reads (a
    smaller cache then), or more, which stretches its positions, and the draft model's, by YaRN.

    `retriever` (bm25, static, dense, hybrid) finds what a drafter reads of a long prompt (`rapid`),
    `retrieved` tokens of it: a number, "rapid" for the paper's max(4096, L/24), or "capped": that,
    but at most a quarter. `verifier` decides what is kept of a draft (VERIFIERS says what comes
    out); `rapid` and `rapid-phat` change the model's distribution by a `shift` towards the
    drafter's, and results then say that they are not lossless.

    `kv_cache` is how many bytes keys and values may take. A GPU's cache is allocated at once, by
    default for `max_batch` whole contexts, one more and the `prefix_cache` that is asked for, if
    there is room; a CPU's grows. In it `prefix_cache` bytes of texts read before may be kept for
    prompts that begin the same: 0 for none, None for a tenth of the memory. `disk_cache` is how
    many bytes of those that `Engine.remember` is told to keep may lie on disk.

    `warm` captures a GPU's graphs of every size now, in a second or two, not when a request first
    needs one: each takes as long as twenty tokens. Of the heads those are put to work now that
    `draft` uses, others when a request first does.
    """
    check_draft(draft, draft_model=draft_model is not None, head=may_have_head(head))
    check_verifier(verifier, draft)
    chains, retrieval = chains_for(verifier, gamma, confidence), Retrieval(retriever, retrieved)
    short = retrieves(draft)
    retrieval.check(needed=short)
    if draft_device and not draft_model:
        raise InputError("a draft device needs a draft model; name one (--draft-model)")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    loaded = load_model(
        model, dtype=dtype, device=device, context_length=context_length, invariant=invariant
    )
    drafting = None
    if draft_model:
        drafting = load_model(
            draft_model,
            dtype=dtype,
            device=draft_device or loaded.device,
            context_length=context_length,
        )
        check_same_tokens(loaded, drafting)
    both = [loaded, drafting] if drafting else [loaded]
    sequences = max_batch + 1
    if short and not drafting:
        sequences += -(-max_batch // 4)  # short prompts have a quarter of the tokens at most
    _hold(both, sequences=sequences, kept=prefix_cache or 0, most_bytes=kv_cache)
    if warm:
        for each in both:
            each.model.warm_up(max_batch)
    costs = _costs(loaded)
    kept = memory(loaded.device) // 10 if prefix_cache is None else prefix_cache
    _keep_prefixes(both, most_bytes=kept, disk_bytes=disk_cache)
    vocabulary = loaded.model.vocabulary
    resources = DraftResources(
        model=drafting and with_overhead(DraftModel(drafting.model, _costs(drafting), vocabulary)),
        heads=Heads(find_heads(head, loaded), loaded, sequences=max_batch + 1, warm=warm),
        target=with_overhead(DraftModel(loaded.model, costs, vocabulary)),
        shorten=retrieval.with_tokenizer(loaded.tokenizer),
        chains=chains,
        clock=machine_clock(),
    )
    verify = make_verifier(verifier, shift or Shift())
    return engine_around(
        loaded, costs, resources=resources, draft=draft, verify=verify, max_batch=max_batch
    )


def _hold(
    both: Sequence[LoadedModel], *, sequences: int, kept: int, most_bytes: int | None
) -> None:
    """Give each its share of the cache's memory, by the size of its rows; `kept` bytes of it are
    for texts that were read before."""
    for place, each in enumerate(both):
        own = each.model.arena.storage.row_bytes
        to_come = [other for other in both[place:] if other.device == each.device]
        hold_rows(
            each.model,
            each.device,
            sequences=sequences,
            most_bytes=None if most_bytes is None else int(most_bytes * own / _row_bytes(both)),
            kept=int(kept / _row_bytes(both)),
            share=own / _row_bytes(to_come),
        )


def _keep_prefixes(both: Sequence[LoadedModel], *, most_bytes: int, disk_bytes: int) -> None:
    """Let texts be kept in memory, and the target's, where that is asked for, on disk."""
    if not most_bytes:
        return
    rows, store, target = most_bytes // _row_bytes(both), None, both[0]
    if disk_bytes:
        store = PrefixFiles(prefix_folder(), rows_key_of(target), most_bytes=disk_bytes)
    target.model.prefixes.use(most_rows=rows, store=store)
    for other in both[1:]:
        other.model.prefixes.use(most_rows=rows)


def _row_bytes(both: Sequence[LoadedModel]) -> int:
    return sum(each.model.arena.storage.row_bytes for each in both)


def _costs(loaded: LoadedModel) -> StepCosts:
    return costs_for(loaded.model, loaded.identity, loaded.dtype, loaded.device)


def warm_up() -> None:
    """Compile the kernels of the lookup drafters, or load them from numba's cache."""
    for each in (*INDEXES, Calibration, build_tree, budget):
        each.warm_up()


def engine_around(
    loaded: LoadedModel,
    costs: StepCosts,
    *,
    resources: DraftResources | None = None,
    draft: str = "auto",
    verify: Verifier = walk,
    max_batch: int = 16,
) -> Engine:
    """An engine with every preset around a model, and those who help it, that are there already."""
    warm_up()
    resources = resources or DraftResources()
    if resources.target is None:
        itself = DraftModel(loaded.model, costs, loaded.model.vocabulary)
        resources = replace(resources, target=itself)
    drafters = Drafters(resources, loaded.tokenizer)
    drafters[draft]  # InputError where it cannot be made
    return Engine(
        loaded,
        drafters,
        verify,
        costs,
        default_draft=draft,
        max_batch=max_batch,
    )


def rows_key_of(loaded: LoadedModel) -> str:
    """Everything the rows of a text depend on besides the text."""
    return rows_key(
        loaded.identity,
        loaded.dtype,
        loaded.forward_name,
        type(loaded.model.forward).__name__,
        loaded.device.partition(":")[0],
        version("transformers"),  # it reads the config
    )
