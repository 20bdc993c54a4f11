"""Graft's copies inside vLLM's asynchronous scheduling: found on the GPU, if they are likely.

    GRAFT_VLLM=1 vllm serve MODEL --compilation-config '{"cudagraph_mode": "FULL"}'
        --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 15,
                               "prompt_lookup_min": 1, "prompt_lookup_max": 16}'

vLLM schedules the next step while this one runs, unless a proposer needs the host, as its
`custom_class` and `ngram` do, also in steps without a draft. `ngram_gpu` does not, but before each
step the host waits for the number of draft tokens that its search found, and a step in which not
every request has all of them replays no CUDA graph of the whole model. `register` replaces

- the search: the latest longest match of up to 16 tokens, with measured acceptance rates;
- the trimming: all requests get the same number of draft tokens, chosen one step ahead by
  `DraftWidth`, and the host waits for nothing. A plain step has none;
- copies of lengths and counts that a plain step does not need;
- drafts beside prompts with which a step has no CUDA graph and without which it has one;
- what the host computes anew for each step with drafts: places and indices that depend on the
  number of requests and draft tokens alone, and a function compiled at run time, whose guards
  take longer than its few operations, and whose compilation takes as long as hundreds of steps;
- the rounding of graph sizes to multiples of 1 + num_speculative_tokens with cudagraph_mode FULL,
  which needs none: so a plain step replays the graph that vLLM without speculation replays.

vLLM finds `register` by its plug-in entry point; without GRAFT_VLLM=1 nothing is replaced. A row
holds a request's documents and prediction (`vllm_fields.py`), its prompt and its answer; of the
first two the last GRAFT_DOCUMENTS tokens, 8,192 if that is not set.
"""

import logging
import os
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graft.errors import InputError
from graft.integrations.device_drafts import DeviceDrafts, ReportedRates
from graft.integrations.draft_counters import DraftCounters
from graft.integrations.draft_width import DraftWidth, accepted_at
from graft.integrations.row_texts import room, row_text
from graft.integrations.versions import VLLM_DEVICE
from graft.integrations.vllm_fields import Reader, tokenizer_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

SWITCH = "GRAFT_VLLM"
METHOD = "ngram_gpu"
WIDEST_GAP = 0.25  # seconds between two outputs that belong to one run of steps
REMEMBERED = 64  # kinds of steps whose indices of drafts stay on the device
CORRECTION = "update_num_computed_tokens_for_batch_change"  # vLLM's, of lengths after drafts
SOURCE = "text"  # of all drafts: any text of the request

logger = logging.getLogger(__name__)


class RowDrafts(DeviceDrafts):
    """Drafts of vLLM's batch, whose rows of text move with its rows."""

    def __init__(self, most: int, rows: int, vocabulary: int, device: "torch.device") -> None:
        """See `DeviceDrafts`."""
        import torch

        super().__init__(most, rows, vocabulary, device)
        self._none = torch.empty(rows, 0, dtype=torch.int32, device=device)
        self._places: dict[str, int] = {}

    def follow(
        self,
        places: Mapping[str, int],
        new: Set[str],
        text: "Tensor",
        known: "Tensor",
        lengths: Sequence[int],
        given: "Mapping[str, Tensor | None]" = MappingProxyType({}),
    ) -> None:
        """Let rows of text [R, M] belong to the requests that now have these places.

        Rows of requests that were there move. Those of new ones get the tokens `given` for them and
        the first `lengths[place]` tokens of `known` [R, <= M]; both are on the host.
        """
        import torch

        if not new and places == self._places:
            return
        self.move(
            text,
            [
                (before, place)
                for name, place in places.items()
                if name not in new and (before := self._places.get(name)) not in (None, place)
            ],
        )
        fresh = {}
        for name, place in ((name, places[name]) for name in new if name in places):
            tokens = known[place, : int(lengths[place])]
            other = given.get(name)
            fresh[place] = tokens if other is None else torch.cat([other, tokens])
        self.write(text, fresh)
        self._places = dict(places)

    def append(
        self, sampled: "Tensor", discarded: "Tensor", text: "Tensor"
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """See `append_sampled`."""
        from graft.kernels.copy_triton import append_sampled

        return append_sampled(sampled, discarded, text, self._state)

    def warm_up(self, text: "Tensor") -> None:
        """Compile the kernels for texts of that shape; the first row of it is overwritten."""
        import torch

        kept = torch.zeros(1, dtype=torch.bool, device=text.device)
        self.append(torch.ones_like(text[:1, :1]), kept, text)
        self.compile(text)

    def propose(self, drafted: int, text: "Tensor", rows: int) -> "tuple[Tensor, Tensor | None]":
        """Draft tokens [B, drafted] for so many rows of text, and the acceptance rates [B] that
        drafts have had, also of no tokens, in units of 1 / RATE_UNIT.

        A row without a match or a new token has rate 0 and tokens 0. Without draft tokens only
        one of SEARCHED steps has rates.
        """
        if not self.searches(plain=not drafted):
            return self._none[:rows], None
        self.search(text, rows)
        return self.draft(drafted, text, rows), self.rates[:rows]


class Shared:
    """What vLLM's functions of this process cannot pass on."""

    rates: Mapping[str, float] | None = None  # acceptance rates that the device last reported
    reported = ReportedRates()
    proposer: Any = None


def read_rates(
    event: object,  # noqa: ARG001  the host waits for nothing
    reported: "Tensor",
    scheduler_output: object,  # noqa: ARG001  nothing is trimmed
    places: Mapping[str, int],
) -> None:
    """Takes the place of vLLM's trimming: read what is there, of the last step or one before."""
    Shared.rates = Shared.reported.read(reported, places)


def follow_rows(
    input_batch: Any,  # noqa: ANN401
    token_ids_gpu: "Tensor",
    num_tokens_no_spec_gpu: object,  # noqa: ARG001  the proposer has its own
    new_reqs: Sequence[Any],
    *_: object,
    **__: object,
) -> None:
    """Takes the place of vLLM's update of texts and lengths on the device."""
    Shared.proposer.follow(
        input_batch.req_id_to_index,
        {request.req_id: request for request in new_reqs},
        token_ids_gpu,
        input_batch.token_ids_cpu_tensor,
        input_batch.num_tokens_no_spec,
    )


def proposer_of(base: type[Any]) -> type[Any]:
    """vLLM's class of proposers for `ngram_gpu` with our search."""

    import torch

    class DeviceProposer(base):
        def __init__(self, vllm_config: Any, device: "torch.device", runner: Any = None) -> None:  # noqa: ANN401
            config = vllm_config.speculative_config
            _refuse_drafts_on_the_host(config)
            self.k, self.device = config.num_speculative_tokens, device
            self.max_model_len = vllm_config.model_config.max_model_len
            rows = vllm_config.scheduler_config.max_num_seqs
            vocabulary = vllm_config.model_config.get_vocab_size()
            self._reader = Reader(vocabulary, lambda: tokenizer_of(vllm_config))
            self._drafts = RowDrafts(self.k, rows, vocabulary, device)
            text = torch.zeros(1, self.max_model_len + room(), dtype=torch.int32, device=device)
            self._drafts.warm_up(text)
            self._columns, self._runner = 1, runner
            self._copy_counts = runner._copy_valid_sampled_token_count
            runner._copy_valid_sampled_token_count = self._copy_counts_of_drafts
            Shared.proposer = self

        def load_model(self, *_: object, **__: object) -> None:
            """Make room for documents in vLLM's rows, before it measures its memory, load the
            tokenizer, for those that are texts, and change what the runner has made by now."""
            self._reader.load()
            runner = self._runner
            _widen_rows(runner)
            # vLLM corrects its lengths request by request, and reads them nowhere: on the host
            runner.num_tokens_no_spec_gpu = runner.num_tokens_no_spec_gpu.long().cpu().numpy()
            metadata = metadata_of(runner._calc_spec_decode_metadata, runner.input_ids.gpu)
            runner._calc_spec_decode_metadata = metadata
            runner._prepare_input_ids = input_ids_of(runner._prepare_input_ids, runner)

        def follow(
            self,
            places: Mapping[str, int],
            new: Mapping[str, Any],
            text: "Tensor",
            known: "Tensor",
            lengths: Sequence[int],
        ) -> None:
            """See `RowDrafts.follow`; `new` are vLLM's requests."""
            given = {
                name: row_text(
                    name, [each.tolist() for _, each in self._reader.read(name, request)[0]]
                )
                for name, request in new.items()
            }
            self._drafts.follow(places, new.keys(), text, known, lengths, given)

        def update_token_ids_ngram(  # noqa: PLR0913  vLLM's contract
            self,
            sampled_token_ids: "Tensor",
            gpu_input_batch: object,  # noqa: ARG002
            token_ids_gpu: "Tensor",
            num_tokens_no_spec: object,  # noqa: ARG002
            discard_request_mask: "Tensor",
        ) -> "tuple[Tensor, Tensor, Tensor]":
            self._columns = sampled_token_ids.shape[1]
            return self._drafts.append(sampled_token_ids, discard_request_mask, token_ids_gpu)

        def propose(  # noqa: PLR0913  vLLM's contract
            self,
            num_speculative_tokens: int,
            num_tokens_no_spec: object,  # noqa: ARG002
            token_ids_gpu: "Tensor",
            valid_sampled_token_ids_gpu: object,  # noqa: ARG002  appended already
            valid_sampled_tokens_count: "Tensor",
        ) -> "tuple[Tensor, Tensor | None]":
            drafted = min(num_speculative_tokens, self.k)
            return self._drafts.propose(drafted, token_ids_gpu, len(valid_sampled_tokens_count))

        def _copy_counts_of_drafts(self, last: "Tensor", counts: "Tensor") -> None:
            """vLLM's method of the runner, for steps with drafts. Others have one token each, so
            that the next step takes the scheduler's lengths."""
            if self._columns > 1:
                self._copy_counts(last, counts)
            else:
                self._runner.input_batch.prev_sampled_token_ids = last.unsqueeze(1)

    return DeviceProposer


def _widen_rows(runner: Any) -> None:  # noqa: ANN401
    from torch.nn.functional import pad

    runner.token_ids_gpu_tensor = pad(runner.token_ids_gpu_tensor, (0, room()))


def _refuse_drafts_on_the_host(config: Any) -> None:  # noqa: ANN401
    if getattr(config, "disable_padded_drafter_batch", False):
        raise InputError(f"{SWITCH}=1 needs disable_padded_drafter_batch=False")


def metadata_of(compute: Callable[..., Any], input_ids: "Tensor") -> Callable[..., Any]:
    """vLLM's function that computes the metadata of drafts, which is remembered for steps of
    requests that all decode with as many draft tokens. Their tokens are those in `input_ids`."""
    from torch import contiguous_format as contiguous

    remembered: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def metadata(drafted: "np.ndarray", ends: "np.ndarray") -> Any:  # noqa: ANN401
        requests, width = len(drafted), int(drafted[0])
        rows = requests * (width + 1)
        if not width or int(ends[-1]) != rows or (drafted != width).any():
            return compute(drafted, ends)
        known = remembered.pop((requests, width), None) or compute(drafted, ends)
        remembered[requests, width] = known
        if len(remembered) > REMEMBERED:
            remembered.popitem(last=False)
        tokens = input_ids[:rows].view(requests, width + 1)[:, 1:].clone(memory_format=contiguous)
        return replace(known, draft_token_ids=tokens.view(-1))

    return metadata


def input_ids_of(prepare: Callable[..., None], runner: Any) -> Callable[..., None]:  # noqa: ANN401
    """vLLM's function that brings sampled and draft tokens into the next step's input; it makes
    lists of places on the host. Where all requests of the last step decode with as many draft
    tokens, their rows are copied."""

    def prepared(step: Any, requests: int, total: int, ends: "np.ndarray") -> None:  # noqa: ANN401
        drafts, sampled = runner._draft_token_ids, runner.input_batch.prev_sampled_token_ids
        width = total // requests - 1
        if (
            width > 0
            and total == requests * (width + 1)
            and len(step.scheduled_spec_decode_tokens) == requests
            and sampled is not None
            and getattr(drafts, "shape", None) == (len(sampled), width)
            and runner.prev_positions.np[:requests].tolist() == list(range(requests))
            and not runner.enable_prompt_embeds
        ):
            rows = runner.input_ids.gpu[:total].view(requests, width + 1)
            rows[:, 0] = sampled[:requests, 0]
            rows[:, 1:] = drafts[:requests]
            return
        prepare(step, requests, total, ends)

    return prepared


def keep_graph(scheduler: Any) -> None:  # noqa: ANN401
    """Drop all drafts of vLLM's next step if it replays a CUDA graph without them, but not with
    them, because it also computes short prompts: outside of graphs it takes several times as
    long."""
    free = scheduler.max_num_running_reqs - len(scheduler.running)
    prompts = sum(each.num_tokens for each in islice(scheduler.waiting, free))
    drafted = sum(len(each.spec_token_ids) for each in scheduler.running)
    tokens = prompts + len(scheduler.running)
    largest = scheduler.vllm_config.compilation_config.max_cudagraph_capture_size or 0
    if prompts and tokens <= largest < tokens + drafted:
        for each in scheduler.running:
            each.spec_token_ids = []


def drafted_by_all(step: Any) -> int | None:  # noqa: ANN401
    """The draft tokens of each request, where all of a step decode with as many."""
    drafts, tokens = step.scheduled_spec_decode_tokens, step.num_scheduled_tokens
    widths = {count - 1 for count in tokens.values()}
    (width,) = widths if len(widths) == 1 else (-1,)
    decoding = width >= 0 and len(drafts) == (len(tokens) if width else 0)
    return width if decoding and not step.scheduled_new_reqs else None


class Steps:
    """What vLLM's scheduler chooses for its steps, and what it learns from them."""

    def __init__(self, most: int) -> None:
        """With at most so many draft tokens of each request."""
        self.width = DraftWidth(most)
        self._counters = DraftCounters()
        self._last_output = 0.0

    def choose(self, names: Collection[str]) -> int:
        """Draft tokens of each of these requests in the next step."""
        expected, rates = None, Shared.rates
        if rates is not None:
            expected = accepted_at([rates[name] for name in names if rates.get(name)])
        return self.width.choose(len(names), expected)

    def observe(self, step: Any, sampled: list[list[int]]) -> None:  # noqa: ANN401
        """A step's output is there: learn from it if all requests decode with as many draft
        tokens."""
        now = time.perf_counter()
        seconds, self._last_output = now - self._last_output, now
        width = drafted_by_all(step)
        if width is not None and seconds < WIDEST_GAP:
            self.width.observe(width, [len(each) for each in sampled if each], seconds)
        if drafted := sum(map(len, step.scheduled_spec_decode_tokens.values())):
            accepted = sum(len(each) - 1 for each in sampled if each)
            self._counters.add(Counter({SOURCE: drafted}), Counter({SOURCE: accepted}))


def scheduler_of(base: type[Any]) -> type[Any]:
    """vLLM's asynchronous scheduler with as many draft tokens a step as are expected to pay."""

    class DraftingScheduler(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **kwargs)
            config = getattr(self.vllm_config, "speculative_config", None)
            drafting = config is not None and config.method == METHOD
            self._steps = Steps(self.num_spec_tokens) if drafting else None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if self._steps and self.waiting:
                keep_graph(self)
            return super().schedule(*args, **kwargs)

        def _update_after_schedule(self, scheduler_output: Any) -> None:  # noqa: ANN401
            if self._steps:
                width = self._steps.choose(scheduler_output.num_scheduled_tokens)
                scheduler_output.num_spec_tokens_to_schedule = width
            super()._update_after_schedule(scheduler_output)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ANN401
            if self._steps:
                self._steps.observe(scheduler_output, model_runner_output.sampled_token_ids)
            return super().update_from_output(scheduler_output, model_runner_output)

    return DraftingScheduler


def graph_sizes_of(resolve: Any) -> Any:  # noqa: ANN401
    """vLLM's choice of CUDA graphs with all sizes where one kind of graph serves all steps."""

    def keeping_sizes(config: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        sizes, largest = config.cudagraph_capture_sizes, config.max_cudagraph_capture_size
        mode = resolve(config, *args, **kwargs)
        if getattr(mode, "name", "") == "FULL":
            config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = sizes, largest
        return mode

    return keeping_sizes


def register() -> None:
    """vLLM's plug-in: replace search, trimming and graph sizes of `ngram_gpu` if GRAFT_VLLM=1."""
    if os.environ.get(SWITCH) != "1":
        return
    import vllm

    VLLM_DEVICE.check(vllm.__version__)
    try:
        from vllm.config.compilation import CompilationConfig
        from vllm.v1.core.sched import async_scheduler
        from vllm.v1.spec_decode import ngram_proposer_gpu as search
        from vllm.v1.spec_decode import utils

        found, scheduler = search.NgramProposerGPU, async_scheduler.AsyncScheduler
        resolve = CompilationConfig.resolve_cudagraph_mode_and_sizes
        _ = search.update_scheduler_for_invalid_drafts, scheduler._update_after_schedule
        _ = search.update_ngram_gpu_tensors_incremental
        compiled = getattr(utils, CORRECTION)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{SWITCH}=1 needs a vLLM with the speculative method {METHOD}, such as 0.24"
        ) from error
    if found.__name__ == "DeviceProposer":  # vLLM loads plug-ins more than once
        return
    replaced = {
        "NgramProposerGPU": proposer_of(found),
        "update_scheduler_for_invalid_drafts": read_rates,
        "update_ngram_gpu_tensors_incremental": follow_rows,
    }
    vars(search).update(replaced)
    uncompiled = {CORRECTION: getattr(compiled, "_torchdynamo_orig_callable", compiled)}
    vars(utils).update(uncompiled)
    runner = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if runner is not None:
        vars(runner).update(replaced | uncompiled)
    async_scheduler.AsyncScheduler = scheduler_of(scheduler)
    CompilationConfig.resolve_cudagraph_mode_and_sizes = graph_sizes_of(resolve)
