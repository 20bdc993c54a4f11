"""From the names of models to an engine."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from graft.assemble.copies import INDEXES
from graft.assemble.drafters import Drafters
from graft.assemble.heads import Heads, machine_clock
from graft.assemble.presets import MTP, check_draft, check_verifier, retrieves
from graft.assemble.resources import DraftResources
from graft.decode.engine import Engine
from graft.draft.copies import build_tree
from graft.draft.copies.calibration import Calibration
from graft.draft.models.chains import RAPID_GAMMA, Chains
from graft.draft.models.model import DraftModel
from graft.draft.models.overhead import with_overhead
from graft.draft.options import Casd, Rasd
from graft.draft.pacing import budget
from graft.draft.short_context.retrieved import DEFAULT_BUDGET, DEFAULT_RETRIEVER, Retrieval
from graft.errors import InputError
from graft.match.pool import PoolOptions, Pools
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.checkpoints.tokenizer import tokenizer_fingerprint
from graft.models.gpu import hold_rows
from graft.models.heads.installed import AUTO_HEAD, may_have_head
from graft.models.heads.load import find_heads
from graft.models.load import LoadedModel, load_model, memory
from graft.models.prefix_files import PrefixFiles, prefix_folder, rows_key
from graft.models.same_tokens import check_same_tokens
from graft.models.step_costs import StepCosts, costs_for
from graft.tree import fuse
from graft.verify.chain import rejection
from graft.verify.rapid import Rapid, Shift
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
    rasd: Rasd | None = None,
    casd: Casd | None = None,
    invariant: bool = False,
    max_batch: int = 16,
    kv_cache: int | None = None,
    kv_cache_dtype: str = "auto",
    prefix_cache: int | None = None,
    disk_cache: int = 0,
    pool: PoolOptions | str | bool = False,
    warm: bool = True,
) -> Engine:
    """Load a model and return an engine: by a known name, a hub id, a folder or a GGUF file.

        engine = graft.load("smollm2-135m")
        print(engine.generate("Once upon a time").text)

    Model: `dtype` (fp32, bf16, fp16) and `device` "auto" choose the fastest here. `context_length`
    is the maximum of prompt and answer tokens: below the model's own it makes the KV cache smaller,
    above it stretches the positions by YaRN. `invariant` makes drafted and plain output equal bit
    for bit in every dtype, at a cost; the CPU kernels always do.

    Drafting: `draft` is the default preset, or several joined by "+". `draft_model` is a model with
    the same tokenizer, on `draft_device` or the model's own; its chains have `gamma` tokens (None:
    chosen by the cost model) and end at the first token with a probability below `confidence`.
    `gamma` holds for the presets `window`, `magicdec*` and `triforce*` too (None: their own).
    `head` is a draft head: a folder, an installed one's name or a hub id; "auto" for those
    installed for the model and the MTP layer of its checkpoint, None for no head.
    `retriever` (bm25, static, dense, hybrid) selects `retrieved` tokens of a long prompt for the
    presets `rapid*`: a number, "rapid" for the paper's max(4096, L/24), or "capped" for at most a
    quarter of the prompt. `verifier` (walk, rejection, rapid, rapid-phat) accepts draft tokens; the
    rapid ones `shift` the model's distribution, so their results are not lossless. `rasd` has the
    numbers of the presets `rasd-*`, `casd` those of `casd`, `casd-prompt` and `copy`. A `Request`
    may have its own.

    Memory and batching: up to `max_batch` sequences run at once. `kv_cache` limits the KV cache in
    bytes: a GPU allocates it at once, by default for `max_batch` + 1 whole contexts and the
    `prefix_cache`; a CPU's grows. Its `kv_cache_dtype` is fp32, bf16, fp16 or fp8 on the CPU,
    "auto" is fp32; on a GPU it is the weights'. `prefix_cache` bytes of it keep prompts for later
    requests with the same prefix (None: a tenth of the memory, 0: none). `disk_cache` bytes on disk
    hold the prompts of `Engine.remember`. `pool` keeps answers as a source of drafts for later
    requests with the same `cache_salt`: in memory (True), also in a folder (its path), or as
    PoolOptions say. `warm` captures a GPU's graphs now, which takes one or two seconds, instead of
    on first use.

    Raises CheckpointError for a model that cannot be loaded, UnsupportedModelError for one that
    cannot be scored exactly, InputError for options that do not fit together.
    """
    began = time.perf_counter()
    check_draft(draft, draft_model=draft_model is not None, head=may_have_head(head))
    check_verifier(verifier, draft)
    chains, retrieval = chains_for(verifier, gamma, confidence), Retrieval(retriever, retrieved)
    short = retrieves(draft)
    retrieval.check(needed=short)
    if draft_device and not draft_model:
        raise InputError("a draft device needs a draft model; name one (--draft-model)")
    load_one = partial(
        load_model, dtype=dtype, context_length=context_length, kv_cache_dtype=kv_cache_dtype
    )
    loaded = load_one(model, device=device, invariant=invariant)
    drafting = None
    if draft_model:
        drafting = load_one(draft_model, device=draft_device or loaded.device)
        check_same_tokens(loaded, drafting)
    both = [loaded, drafting] if drafting else [loaded]
    sequences = max_batch + 1
    if short and not drafting:
        sequences += -(-max_batch // 4)  # a short prompt has at most a quarter of the tokens
    _hold(both, sequences=sequences, kept=prefix_cache or 0, max_bytes=kv_cache)
    if warm:
        for each in both:
            each.model.warm_up(max_batch)
    costs = _costs(loaded)
    kept = memory(loaded.device) // 10 if prefix_cache is None else prefix_cache
    _keep_prefixes(both, max_bytes=kept, disk_bytes=disk_cache)
    vocabulary = loaded.model.vocabulary
    pools = _pools(pool, loaded)
    resources = DraftResources(
        model=_draft_model(drafting, _costs(drafting), vocabulary) if drafting else None,
        heads=Heads(
            find_heads(head, loaded, needs_mtp=MTP in draft.split("+")),
            loaded,
            sequences=max_batch + 1,
            warm=warm,
        ),
        target=_draft_model(loaded, costs, vocabulary),
        shorten=retrieval.with_tokenizer(loaded.tokenizer),
        chains=chains,
        clock=machine_clock(),
        rasd=rasd or Rasd(),
        casd=casd or Casd(),
        pools=pools,
    )
    verify = make_verifier(verifier, shift or Shift())
    engine = engine_around(
        loaded, costs, resources=resources, draft=draft, verify=verify, max_batch=max_batch
    )
    engine.load_seconds = time.perf_counter() - began
    return engine


def make_verifier(name: str, shift: Shift) -> Verifier:
    """The verifier of this name."""
    made: dict[str, Verifier] = {
        "walk": walk,
        "rejection": rejection,
        "rapid": Rapid(shift, Shift.paper_rule),
        "rapid-phat": Rapid(shift, Shift.phat_rule),
    }
    return made[name]


def chains_for(verifier: str, gamma: int | None, confidence: float) -> Chains:
    """The chains for a verifier. RAPID's shift the distribution, so their length must not depend
    on measured costs."""
    if gamma is None and verifier.startswith("rapid"):
        gamma = RAPID_GAMMA
    return Chains(gamma, confidence, sampled=verifier != "walk")


def _hold(both: Sequence[LoadedModel], *, sequences: int, kept: int, max_bytes: int | None) -> None:
    """Allocate each model's share of the KV cache, by the size of its rows; `kept` bytes of it are
    for the prefix cache."""
    for place, each in enumerate(both):
        own = each.model.arena.storage.row_bytes
        to_come = [other for other in both[place:] if other.device == each.device]
        hold_rows(
            each.model,
            each.device,
            sequences=sequences,
            max_bytes=None if max_bytes is None else int(max_bytes * own / _row_bytes(both)),
            kept=int(kept / _row_bytes(both)),
            share=own / _row_bytes(to_come),
        )


def _keep_prefixes(both: Sequence[LoadedModel], *, max_bytes: int, disk_bytes: int) -> None:
    """Enable the prefix cache in memory, and the target's on disk."""
    if not max_bytes:
        return
    rows, store, target = max_bytes // _row_bytes(both), None, both[0]
    if disk_bytes:
        store = PrefixFiles(prefix_folder(), rows_key_of(target), max_bytes=disk_bytes)
    target.model.prefixes.use(max_rows=rows, store=store)
    for other in both[1:]:
        other.model.prefixes.use(max_rows=rows)


def _row_bytes(both: Sequence[LoadedModel]) -> int:
    return sum(each.model.arena.storage.row_bytes for each in both)


def _pools(pool: PoolOptions | str | bool, loaded: LoadedModel) -> Pools | None:  # noqa: FBT001
    if pool is False:
        return None
    if isinstance(pool, str):
        pool = PoolOptions(folder=pool)
    options = pool if isinstance(pool, PoolOptions) else PoolOptions()
    tokenizer = loaded.tokenizer
    return Pools(options, "" if tokenizer is None else tokenizer_fingerprint(tokenizer))


def _draft_model(loaded: LoadedModel, costs: StepCosts, vocabulary: int) -> DraftModel:
    return with_overhead(DraftModel(loaded.model, costs, vocabulary))


def _costs(loaded: LoadedModel) -> StepCosts:
    return costs_for(loaded.model, loaded.identity, loaded.dtype, loaded.device)


def warm_up() -> None:
    """Compile the kernels of the lookup drafters, or load them from numba's cache."""
    for each in (*INDEXES, Calibration, build_tree, budget, fuse):
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
    """An engine with every preset around a loaded model and draft resources."""
    warm_up()
    resources = resources or DraftResources()
    if resources.target is None:
        itself = DraftModel(loaded.model, costs, loaded.model.vocabulary)
        resources = replace(resources, target=itself)
    drafters = Drafters(resources, loaded.tokenizer)
    drafters[draft]  # InputError where it cannot be made
    engine = Engine(loaded, drafters, verify, costs, default_draft=draft, max_batch=max_batch)
    if resources.pools:
        engine.keep_answers(resources.pools)
    return engine


def rows_key_of(loaded: LoadedModel) -> str:
    """A digest of everything that rows depend on except the text."""
    return rows_key(
        loaded.identity,
        loaded.dtype,
        loaded.forward_name,
        type(loaded.model.forward).__name__,
        loaded.device.partition(":")[0],
        version("transformers"),  # it reads the config
    )
