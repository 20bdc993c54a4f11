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
- the rounding of graph sizes to multiples of 1 + num_speculative_tokens with cudagraph_mode FULL,
  which needs none: so a plain step replays the graph that vLLM without speculation replays.

vLLM finds `register` by its plug-in entry point; without GRAFT_VLLM=1 nothing is replaced.
"""

import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graft.errors import InputError
from graft.integrations.draft_width import DraftWidth

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SWITCH = "GRAFT_VLLM"
METHOD = "ngram_gpu"
PRIOR = 4.0  # drafts of each match length that the first acceptance rate counts for
DECAY = 0.999  # per step, of what was observed
WIDEST_GAP = 0.25  # seconds between two outputs that belong to one run of steps


class DeviceDrafts:
    """Drafts of a batch. Its state stays on the device, and the host never waits for it."""

    def __init__(self, most: int, rows: int, device: "torch.device") -> None:
        """At most `most` draft tokens for each of so many rows."""
        import torch

        from graft.kernels.copy_triton import LONGEST, DraftState

        lengths = 1 << LONGEST.bit_length()  # match lengths, padded to a power of two
        length = torch.arange(lengths, device=device, dtype=torch.float32)
        prior = torch.stack([length, torch.full_like(length, 2.0)]) * PRIOR / (length + 2)
        self._most, self._state = most, DraftState(rows, prior, DECAY, device)

    def propose(
        self, drafted: int, lengths: "Tensor", text: "Tensor", new: "Tensor", counts: "Tensor"
    ) -> "tuple[Tensor, Tensor]":
        """Draft tokens [B, drafted], and the acceptance rates [B] that drafts have had, also of
        no tokens, in units of 1 / RATE_UNIT.

        `text` [B, M] has rows of these lengths [B]; counts [B] of the new tokens [B, T] are
        appended to it first. A row without a match or a new token has rate 0 and tokens 0.
        """
        from graft.kernels.copy_triton import append_tokens, draft_copies

        append_tokens(text, lengths, new, counts, self._state, self._most + 1)
        return draft_copies(text, counts, self._state, drafted, self._most)

    def warm_up(self, text: "Tensor") -> None:
        """Compile the kernels for texts of that shape."""
        import torch

        from graft.kernels.copy_triton import count_sampled

        one = torch.ones(1, dtype=torch.int32, device=text.device)
        discarded = torch.zeros(1, dtype=torch.bool, device=text.device)
        for drafted in (0, self._most):
            _, counts, new = count_sampled(one[:, None], discarded, text, one, 2, self._most + 1)
            self.propose(drafted, one, text[:1], new, counts)
        self._state.seen.copy_(self._state.prior)
        self._state.drafted.zero_()


class Rates:
    """The acceptance rates that the device last reported to this process."""

    latest: list[float] | None = None


def read_rates(
    event: object,  # noqa: ARG001  the host waits for nothing
    reported: "Tensor",
    scheduler_output: object,  # noqa: ARG001  nothing is trimmed
    places: Mapping[str, int],
) -> None:
    """Takes the place of vLLM's trimming: read what is there, of the last step or the one before.

    The device may write meanwhile; the rates choose the next width and nothing else.
    """
    from graft.kernels.copy_triton import RATE_UNIT

    found = reported[: len(places)].tolist()  # at first anything
    Rates.latest = [min(max(each, 0), RATE_UNIT) / RATE_UNIT for each in found]


def proposer_of(base: type[Any]) -> type[Any]:
    """vLLM's class of proposers for `ngram_gpu` with our search."""

    class DeviceProposer(base):
        def __init__(self, vllm_config: Any, device: "torch.device", runner: object = None) -> None:  # noqa: ANN401, ARG002
            import torch

            config = vllm_config.speculative_config
            self.k, self.device = config.num_speculative_tokens, device
            self.max_model_len = vllm_config.model_config.max_model_len
            rows = vllm_config.scheduler_config.max_num_seqs
            self._drafts = DeviceDrafts(self.k, rows, device)
            text = torch.zeros(1, self.max_model_len, dtype=torch.int32, device=device)
            self._drafts.warm_up(text)

        def load_model(self, *_: object, **__: object) -> None:
            pass

        def propose(  # noqa: PLR0913  vLLM's contract
            self,
            num_speculative_tokens: int,
            num_tokens_no_spec: "Tensor",
            token_ids_gpu: "Tensor",
            valid_sampled_token_ids_gpu: "Tensor",
            valid_sampled_tokens_count: "Tensor",
        ) -> "tuple[Tensor, Tensor]":
            return self._drafts.propose(
                min(num_speculative_tokens, self.k),
                num_tokens_no_spec,
                token_ids_gpu,
                valid_sampled_token_ids_gpu,
                valid_sampled_tokens_count,
            )

        def update_token_ids_ngram(  # noqa: PLR0913  vLLM's contract
            self,
            sampled_token_ids: Any,  # noqa: ANN401  tensor or lists
            gpu_input_batch: Any,  # noqa: ANN401
            token_ids_gpu: "Tensor",
            num_tokens_no_spec: "Tensor",
            discard_request_mask: "Tensor",
        ) -> "tuple[Tensor, Tensor, Tensor]":
            """In one launch; vLLM's own takes a dozen."""
            from graft.kernels.copy_triton import count_sampled

            if isinstance(sampled_token_ids, list):
                return super().update_token_ids_ngram(
                    sampled_token_ids,
                    gpu_input_batch,
                    token_ids_gpu,
                    num_tokens_no_spec,
                    discard_request_mask,
                )
            return count_sampled(
                sampled_token_ids,
                discard_request_mask,
                token_ids_gpu,
                num_tokens_no_spec,
                gpu_input_batch.vocab_size,
                self.k + 1,
            )

    return DeviceProposer


def scheduler_of(base: type[Any]) -> type[Any]:
    """vLLM's asynchronous scheduler with as many draft tokens a step as are expected to pay."""

    class DraftingScheduler(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            super().__init__(*args, **kwargs)
            config = getattr(self.vllm_config, "speculative_config", None)
            drafting = config is not None and config.method == METHOD
            self._draft_width = DraftWidth(self.num_spec_tokens) if drafting else None
            self._last_output = 0.0

        def _update_after_schedule(self, scheduler_output: Any) -> None:  # noqa: ANN401
            if self._draft_width is not None:
                scheduler_output.num_spec_tokens_to_schedule = self._draft_width.choose(
                    len(scheduler_output.num_scheduled_tokens), Rates.latest
                )
            super()._update_after_schedule(scheduler_output)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ANN401
            if self._draft_width is not None:
                self._observe(
                    self._draft_width, scheduler_output, model_runner_output.sampled_token_ids
                )
            return super().update_from_output(scheduler_output, model_runner_output)

        def _observe(
            self,
            chooser: DraftWidth,
            scheduler_output: Any,  # noqa: ANN401
            sampled: list[list[int]],
        ) -> None:
            """Count a step in which all requests decode with the same number of draft tokens."""
            now = time.perf_counter()
            seconds, self._last_output = now - self._last_output, now
            drafts = scheduler_output.scheduled_spec_decode_tokens
            tokens = scheduler_output.num_scheduled_tokens
            widths = {count - 1 for count in tokens.values()}
            (width,) = widths if len(widths) == 1 else (-1,)
            decoding = width >= 0 and len(drafts) == (len(tokens) if width else 0)
            if decoding and not scheduler_output.scheduled_new_reqs and seconds < WIDEST_GAP:
                chooser.observe(width, [len(each) for each in sampled if each], seconds)

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
    try:
        from vllm.config.compilation import CompilationConfig
        from vllm.v1.core.sched import async_scheduler
        from vllm.v1.spec_decode import ngram_proposer_gpu as search

        found, scheduler = search.NgramProposerGPU, async_scheduler.AsyncScheduler
        resolve = CompilationConfig.resolve_cudagraph_mode_and_sizes
        _ = search.update_scheduler_for_invalid_drafts, scheduler._update_after_schedule
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{SWITCH}=1 needs a vLLM with the speculative method {METHOD}, such as 0.24"
        ) from error
    if found.__name__ == "DeviceProposer":  # vLLM loads plug-ins more than once
        return
    replaced = {
        "NgramProposerGPU": proposer_of(found),
        "update_scheduler_for_invalid_drafts": read_rates,
    }
    vars(search).update(replaced)
    runner = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if runner is not None:
        vars(runner).update(replaced)
    async_scheduler.AsyncScheduler = scheduler_of(scheduler)
    CompilationConfig.resolve_cudagraph_mode_and_sizes = graph_sizes_of(resolve)
