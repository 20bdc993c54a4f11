"""Steps of SGLang's model with fewer tokens for each request than a full draft tree has.

SGLang's NGRAM verifies a full tree of every request in every step, and before each step the host
waits for the tokens of the last. Attention and CUDA graphs are made for that one size. Here they
are made for smaller trees too, and for SGLang's own plain step. The host plans a plain step while
the device still computes the one before, because it needs neither that step's tokens, which stay on
the device, nor its lengths, if that step is a plain one or a prompt's.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.integrations.draft_width import DraftWidth
from graft.integrations.step_times import OUTLIER, kind_of

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = "graft_length"  # attribute of requests: a `Length`, None if the host must wait for it
RUNNER = ("attn_backend", "decode_cuda_graph_runner", "spec_algorithm", "init_new_workspace")
FEWEST = 3  # draft tokens of a step that has some: each size takes time and memory at the start
SEARCH_SHARE = 0.01  # of the time of plain steps: what searches for copies may add
LONGEST_REST = 32  # steps without a search
COMPARED = 32  # recent steps that a mean of times is of
# Options of SGLang with which steps keep one size: they share buffers across sizes.
ONE_SIZE = ("enable_dp_attention", "enable_two_batch_overlap", "enable_pdmux", "enable_lora")


@dataclass(frozen=True, slots=True)
class Size:
    """What SGLang's worker and model runner have for steps of one size, by attribute."""

    worker: dict[str, Any]
    runner: dict[str, Any]

    @contextmanager
    def used(self, worker: Any) -> Iterator[None]:  # noqa: ANN401
        """Let worker and runner have it for one step; prompts are computed with their own."""
        with _replaced(worker, self.worker), _replaced(worker.model_runner, self.runner):
            yield


FULL = Size({}, {})  # of SGLang's own making


def sizes_of(worker: Any, widths: Sequence[int]) -> dict[int, Size]:  # noqa: ANN401
    """By number of draft tokens; none where SGLang's options need steps of one size."""
    options = worker.server_args
    if (
        any(getattr(options, name, False) for name in ONE_SIZE)
        or options.pp_size > 1
        or _has_recurrent_layers(worker.model_runner)
    ):
        return {}
    return {width: _size(worker, width + 1) for width in widths}


def compile_kernels(worker: Any, widths: Sequence[int]) -> None:  # noqa: ANN401
    """Compile the Triton kernels of steps of all sizes.

    They are made for powers of two of requests and nodes. Compiling one takes as long as a hundred
    steps, so the first requests would wait for it, and drafts would look too slow to pay.
    """
    import torch
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool_func
    from sglang.srt.speculative import ngram_worker

    pool, device = worker.req_to_token_pool, worker.device
    for requests in _powers(worker.max_batch_size):
        nothing = torch.zeros(requests, dtype=torch.int32, device=device)
        places, slots = nothing.long(), torch.zeros(requests + 1, dtype=torch.int64, device=device)
        for given in (slots, slots[1:]):  # slots begin anywhere in the list of free ones
            assign_req_to_token_pool_func(
                places, pool.req_to_token, nothing, nothing, given, requests
            )
        for nodes in (width + 1 for width in widths):
            ngram_worker.assign_extend_cache_locs_func(
                req_pool_indices=places,
                req_to_token=pool.req_to_token,
                start_offset=places,
                end_offset=places + nodes,
                batch_size=requests,
                draft_token_num=nodes,
                device=device,
            )
            if nodes == 1:
                continue
            batch = SimpleNamespace(
                seq_lens=places,
                req_pool_indices=places,
                req_to_token_pool=pool,
                out_cache_loc=torch.zeros(requests * nodes, dtype=torch.int64, device=device),
            )
            rejected = torch.full((requests, nodes), -1, dtype=torch.int32, device=device)
            ngram_worker.move_accept_tokens_to_target_kvcache(
                batch, rejected, nothing, worker.token_to_kv_pool_allocator
            )


def keep_chains_in_place() -> None:
    """Let SGLang move no KV behind verifications: the accepted tokens of a tree's branch go behind
    the text, and those of a chain are there."""
    from sglang.srt.speculative import ngram_worker

    ngram_worker.move_accept_tokens_to_target_kvcache = lambda *_: None


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... up to the first that is not less than the most."""
    return [1 << power for power in range((most - 1).bit_length() + 1)]


def _has_recurrent_layers(runner: Any) -> bool:  # noqa: ANN401
    """Whether verifications keep states that a plain step would not."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    return mambaish_config(runner.model_config) is not None


def _size(worker: Any, nodes: int) -> Size:  # noqa: ANN401
    """Make attention and CUDA graphs for trees of so many nodes; 1 makes those of plain steps."""
    from sglang.srt.runtime_context import get_context, get_spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    runner, option = worker.model_runner, "speculative_num_draft_tokens"
    before = getattr(get_spec(), option)
    get_context().override("graft", **{option: nodes})
    try:
        with _replaced(runner, {name: getattr(runner, name) for name in RUNNER}):
            if nodes == 1:
                runner.spec_algorithm = SpeculativeAlgorithm.NONE
            runner.attn_backend = runner._get_attention_backend(init_new_workspace=True)
            runner.init_decode_cuda_graph()
            made = {name: getattr(runner, name) for name in RUNNER}
    finally:
        get_context().override("graft", **{option: before})
    return Size({} if nodes == 1 else _buffers(worker, nodes), made)


def _buffers(worker: Any, nodes: int) -> dict[str, Any]:  # noqa: ANN401
    """What SGLang's worker has for trees of so many nodes."""
    small = copy(worker)
    small.draft_token_num = small.speculative_num_draft_tokens = nodes
    small._init_preallocated_tensors()
    own = vars(worker)
    return {name: each for name, each in vars(small).items() if own.get(name) is not each}


@contextmanager
def _replaced(owner: Any, values: dict[str, Any]) -> Iterator[None]:  # noqa: ANN401
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class NewestTokens:
    """Of all requests, on the device, by their places in SGLang's pool."""

    def __init__(self, places: int, device: Any) -> None:  # noqa: ANN401
        import torch

        self._newest = torch.zeros(places, dtype=torch.int64, device=device)

    def note(self, batch: Any, tokens: "Tensor", counts: "Tensor | None") -> None:  # noqa: ANN401
        """The new tokens [B, N] of a batch, and how many are some, if not one of each request."""
        newest = tokens if counts is None else tokens.gather(1, counts.long()[:, None] - 1)
        self._newest[batch.req_pool_indices] = newest[:, 0].long()

    def newest(self, batch: Any) -> "Tensor":  # noqa: ANN401
        """Of each request [B], also of those not in the step noted last."""
        return self._newest[batch.req_pool_indices]


class LastStep:
    """The tokens of the step that was launched last. They stay on the device until one asks."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tokens: Tensor | None = None
        self._counts: Tensor | None = None
        self._on_host: dict[str, list[int]] | None = None

    def note(self, batch: Any, tokens: "Tensor", counts: "Tensor | None") -> None:  # noqa: ANN401
        """See `NewestTokens`."""
        self._names = [request.rid for request in batch.reqs]
        self._tokens, self._counts, self._on_host = tokens, counts, None

    def in_flight(self, batch: Any, kept: Sequence[int]) -> list[list[int]]:  # noqa: ANN401
        """The end of each text that is not in output_ids yet, because with overlap scheduling a
        step's result is processed later. `kept` tokens of each request have KV; one more is known.

        The host waits for the step.
        """
        missing = [
            length + 1 - len(request.origin_input_ids) - len(request.output_ids)
            for request, length in zip(batch.reqs, kept, strict=True)
        ]
        if not any(missing):
            return [[] for _ in missing]
        known = self._waited_for()
        return [
            known[request.rid][-count:] if count else []
            for request, count in zip(batch.reqs, missing, strict=True)
        ]

    def _waited_for(self) -> dict[str, list[int]]:
        """The tokens of each request; the first call waits for them."""
        if self._on_host is None:
            rows = [] if self._tokens is None else self._tokens.tolist()
            counts = [1] * len(rows) if self._counts is None else self._counts.tolist()
            self._on_host = {
                name: row[:count]
                for name, row, count in zip(self._names, rows, counts, strict=True)
            }
        return self._on_host


class SearchPrice:
    """How much longer plain steps of a batch take with a search for copies.

    A search is free while the host would wait for the device, and delays the next step otherwise.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[int, bool], tuple[int, float]] = {}  # steps, seconds

    def observe(self, requests: int, seconds: float, *, searched: bool) -> None:
        """Count a plain step of so many requests."""
        kind = kind_of(requests), searched
        count, mean = self._means.get(kind, (0, seconds))
        count = min(count + 1, COMPARED)
        self._means[kind] = count, mean + (min(seconds, OUTLIER * mean) - mean) / count

    def rest(self, requests: int) -> int:
        """Steps without a search for each with one."""
        kind = kind_of(requests)
        if (kind, True) not in self._means or (kind, False) not in self._means:
            return 1
        price = self._means[kind, True][1] / self._means[kind, False][1] - 1
        return min(max(round(price / SEARCH_SHARE), 1), LONGEST_REST)


class Pace:
    """Draft tokens of the next step, chosen by the steps before."""

    def __init__(self, max_width: int) -> None:
        self._width = DraftWidth(max_width, FEWEST)
        self.widths = self._width.widths
        self._price = SearchPrice()
        # Steps without a result: draft tokens, or None for prompts, and when they were launched
        self._launched: deque[tuple[int | None, float]] = deque()
        self._last = 0.0
        self._rests = 0  # steps until the next search
        self._searched = False  # since the last result

    def rests(self) -> bool:
        """Whether the next step is a plain one without a search: lookups take the host's time."""
        return self._rests > 0

    def choose(self, requests: int, expected: Callable[[int], float]) -> tuple[int, int]:
        """Draft tokens of the next step, and how many plain steps without a search follow."""
        self._searched = True
        width = self._width.choose(requests, expected)
        return width, 0 if width else self._price.rest(requests)

    def launched(self, width: int | None, rests: int | None = None) -> None:
        """A step was launched, of prompts if width is None; `rests` as chosen for it."""
        if rests is not None:
            self._rests = rests
        elif width == 0:
            self._rests -= 1
        if width is not None or not self._launched or self._launched[-1][0] is not None:
            self._launched.append((width, time.perf_counter()))

    def processed(self, counts: Sequence[int]) -> None:
        """The result of a step of no prompts is known: the tokens of each request.

        A step alone takes the time since the result before, unless nothing ran then.
        """
        now, alone = time.perf_counter(), True
        while self._launched:
            width, began = self._launched.popleft()
            if width is not None:
                break
            alone = False
        else:
            return
        if alone:
            seconds = now - max(began, self._last)
            usual = self._width.observe(width, counts, seconds)
            following = self._launched[0][0] if self._launched else None
            if usual and width == following == 0:  # the next one was prepared meanwhile
                self._price.observe(len(counts), seconds, searched=self._searched)
        self._last, self._searched = now, False


def plain_step(
    worker: Any,  # noqa: ANN401
    batch: Any,  # noqa: ANN401
    on_publish: Any,  # noqa: ANN401
    size: Size,
    newest: "Tensor",
) -> Any:  # noqa: ANN401
    """SGLang's step without speculation, for a batch that its speculation has prepared, behind the
    `newest` tokens [B].

    Its result is that of a verification which accepted no draft token.
    """
    import torch
    from sglang.srt.managers.scheduler import GenerationBatchResult
    from sglang.srt.speculative import ngram_worker
    from sglang.srt.speculative.ngram_info import NgramVerifyInput
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    stream = torch.get_device_module(worker.device).current_stream()
    ngram_worker.record_stream_for_v2_verify(batch, None, stream)
    requests, nodes = len(batch.reqs), worker.draft_token_num
    lengths = batch.seq_lens + 1
    plain = {
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        "spec_info": None,
        "input_ids": newest,
        "out_cache_loc": ngram_worker.assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=lengths,
            batch_size=requests,
            draft_token_num=1,
            device=worker.device,
        ),
        "seq_lens": lengths,
        "seq_lens_cpu": batch.seq_lens_cpu + 1,
        "seq_lens_sum": None,
    }
    with size.used(worker), _replaced(batch, plain):
        result = worker.target_worker.forward_batch_generation(batch)
    if on_publish is not None:
        on_publish(lengths)
    if batch.return_logprob:  # a row of each request, as after a verification
        found = result.logits_output
        found.next_token_logprobs = found.next_token_logprobs.unsqueeze(1)
    tokens = result.next_token_ids
    one_each = _constant(1, requests, worker.device)
    return GenerationBatchResult(
        logits_output=result.logits_output,
        next_token_ids=tokens,
        can_run_cuda_graph=result.can_run_cuda_graph,
        accept_lens=one_each,
        new_seq_lens=lengths,
        next_draft_input=NgramVerifyInput(
            draft_token_num=nodes,
            new_seq_lens=lengths,
            accept_tokens=_constant(0, requests * nodes, worker.device),
            accept_lens=one_each,
        ),
        speculative_num_draft_tokens=1,
    )


def as_full_trees(following: Any, nodes: int) -> None:  # noqa: ANN401
    """Give what a step with smaller trees leaves to the next the shape of full trees: batches of
    both are merged. Its tokens are not read; `LastStep` has them."""
    if following.draft_token_num == nodes:
        return
    tokens = len(following.accept_lens) * nodes
    following.accept_tokens = _constant(0, tokens, following.accept_tokens.device)
    following.draft_token_num = following.num_tokens_per_req = nodes
    following.num_tokens_for_logprob_per_req = nodes


@lru_cache(512)
def _constant(value: int, count: int, device: Any) -> "Tensor":  # noqa: ANN401
    """A tensor that SGLang merges and filters with its batches, and never writes to."""
    import torch

    return torch.full((count,), value, dtype=torch.int32, device=device)


def full_mask(trees: "Tensor", lengths: "Tensor", total: int) -> "Tensor":
    """The attention mask of whole requests, flattened: trees [B, N, N] after `lengths` [B] tokens
    that all nodes see; `total` of these tokens."""
    import torch

    requests, nodes, _ = trees.shape
    columns = lengths + nodes
    node = torch.arange(nodes, device=trees.device)
    firsts = torch.cumsum(columns * nodes, 0) - columns * nodes
    own = firsts[:, None] + node * columns[:, None] + lengths[:, None]  # each row's tree begins
    size = nodes * (total + requests * nodes)
    mask = torch.ones(size, dtype=torch.bool, device=trees.device)
    mask[(own[:, :, None] + node).flatten()] = trees.flatten()
    return mask


class Length(NamedTuple):
    """How many tokens of a request have KV when the next step runs, at most."""

    most: int
    exact: bool = True
    added: int = 1  # at most, by the step that was launched last


def know_lengths(requests: Sequence[Any], lengths: Sequence[int | None]) -> None:
    """Remember how many tokens of each request have KV when the next step runs."""
    for request, length in zip(requests, lengths, strict=True):
        setattr(request, LENGTH, None if length is None else Length(length))


def bound_lengths(requests: Sequence[Any], lengths: Sequence[int], drafted: int) -> None:
    """A step was launched on so many tokens of each request at most, with so many draft tokens. Its
    result and that of the step before may not be known when the next one is planned."""
    for request, length in zip(requests, lengths, strict=True):
        before: Length | None = getattr(request, LENGTH, None)
        most, exact = length + 1 + drafted, before is None or before.exact
        if before is not None and not exact:
            known = len(request.origin_input_ids) + len(request.output_ids)
            most = min(most, known + before.added + drafted)
        setattr(request, LENGTH, Length(most, exact and not drafted, 1 + drafted))


def known_lengths(requests: Sequence[Any], *, exact: bool = True) -> list[int] | None:
    """What is remembered, if it is for all; with exact=False at most so many."""
    found: list[int] = []
    for each in requests:
        length: Length | None = getattr(each, LENGTH, None)
        if length is None or (exact and not length.exact):
            return None
        found.append(length.most)
    return found


def resolve_known_lengths(relay: Any) -> Any:  # noqa: ANN401
    """SGLang's relay between steps; its host waits for lengths only if they are not known.

    Attention and KV slots take lengths from the device, and from the host what they are at most.
    """
    import torch

    wait = relay.resolve_seq_lens_cpu

    def resolve(batch: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        lengths = None
        if batch.forward_mode.is_decode():
            lengths = known_lengths(batch.reqs, exact=needs_host(batch))
        if lengths is None:
            wait(batch, *arguments, **options)
            return
        with _replaced(relay, {"needs_cpu_seq_lens": False}):
            wait(batch, *arguments, **options)
        batch.seq_lens_cpu = torch.tensor(lengths, dtype=torch.int64)
        batch.seq_lens_sum = sum(lengths)

    relay.resolve_seq_lens_cpu = resolve
    return relay


def needs_host(batch: Any) -> bool:  # noqa: ANN401
    """Whether drafts of a batch must be known on the host."""
    return bool(batch.has_grammar or batch.return_hidden_states)
