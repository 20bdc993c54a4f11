"""Graft's copies inside vLLM's asynchronous scheduling: found on the GPU, if they are likely.

    GRAFT_VLLM=1 vllm serve MODEL --speculative-config '{"method": "ngram_gpu",
        "num_speculative_tokens": 16, "prompt_lookup_min": 1, "prompt_lookup_max": 16}'

vLLM schedules the next step while this one runs, unless a proposer needs the host, as its
`custom_class` and `ngram` do, also in steps without a draft. `ngram_gpu` does not, and a request
without a draft is one row there. This module takes the place of its search: the latest longest
match of up to 16 tokens, as many tokens as are expected to be accepted, by match length. vLLM
finds `register` by its plug-in entry point; without GRAFT_VLLM=1 nothing is replaced.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from graft.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SWITCH = "GRAFT_VLLM"
PRIOR = 4.0  # drafts of each match length that the first acceptance rate counts for
DECAY = 0.999  # per step, of what was observed
FIRST = 0.4  # acceptance rate from which anything is drafted: a step with drafts has fixed costs
LATER = 0.1  # probability from which another token is drafted, of one request ...
ROWS = 64  # ... twice that for so many


class DeviceDrafts:
    """Drafts of a batch. Its state stays on the device, and the host never waits for it."""

    def __init__(self, drafted: int, rows: int, max_length: int, device: "torch.device") -> None:
        import torch

        from graft.kernels.copy_triton import LONGEST

        self._drafted, self._max_length = drafted, max_length
        length = torch.arange(LONGEST + 1, device=device, dtype=torch.float32)
        self._prior = torch.stack([length, torch.full_like(length, 2.0)]) * PRIOR / (length + 2)
        self._seen = self._prior.clone()  # accepted and rejected, by match length
        self._matched = torch.zeros(rows, dtype=torch.int64, device=device)  # at the last step
        self._counts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._places = torch.arange(drafted, device=device)

    def propose(
        self, lengths: "Tensor", text: "Tensor", new: "Tensor", counts: "Tensor"
    ) -> "tuple[Tensor, Tensor]":
        """Draft tokens [B, drafted], -1 beyond those to be verified, and their number [B].

        `text` [B, M] has rows of these lengths [B]; counts [B] of the new tokens [B, T] are
        appended to it first. A row without a new token gets no draft.
        """
        import torch

        from graft.kernels.copy_triton import append_tokens, find_copies

        self._observe(counts)
        append_tokens(text, lengths, new, counts)
        now = (lengths + counts).to(torch.int32)
        draft, matched = find_copies(text, now, self._drafted)
        rate = (self._seen[0] / self._seen.sum(0))[matched]
        price = LATER * (1 + len(lengths) / ROWS)
        likely = rate[:, None] ** (self._places + 1) > price
        wanted = (matched > 0) & (counts > 0) & (rate > FIRST)
        # vLLM reserves the last position for the token that it samples after the draft.
        room = self._places < (self._max_length - 1 - now)[:, None]
        valid = likely & wanted[:, None] & room
        valid_counts = valid.sum(1, dtype=torch.int32)
        self._matched[: len(lengths)], self._counts[: len(lengths)] = matched, valid_counts
        return torch.where(valid, draft, -1), valid_counts

    def _observe(self, counts: "Tensor") -> None:
        """Count the last step's drafts. A row that vLLM moved since counts for another one."""
        import torch

        rows = len(counts)
        drafted = self._counts[:rows]
        accepted = torch.minimum((counts - 1).clamp(min=0), drafted)
        self._seen = self._prior + DECAY * (self._seen - self._prior)
        for place, number in enumerate((accepted, (accepted < drafted) & (counts > 0))):
            self._seen[place].index_add_(0, self._matched[:rows], number.float())


def proposer_of(base: type[Any]) -> type[Any]:
    """vLLM's class of proposers for `ngram_gpu` with our search."""

    class DeviceProposer(base):
        def __init__(self, vllm_config: Any, device: "torch.device", runner: object = None) -> None:  # noqa: ANN401, ARG002
            config = vllm_config.speculative_config
            self.k, self.device = config.num_speculative_tokens, device
            self.max_model_len = vllm_config.model_config.max_model_len
            rows = vllm_config.scheduler_config.max_num_seqs
            self._drafts = DeviceDrafts(self.k, rows, self.max_model_len, device)

        def load_model(self, *_: object, **__: object) -> None:
            pass

        def propose(  # noqa: PLR0913  vLLM's contract
            self,
            num_speculative_tokens: int,  # noqa: ARG002  k
            num_tokens_no_spec: "Tensor",
            token_ids_gpu: "Tensor",
            valid_sampled_token_ids_gpu: "Tensor",
            valid_sampled_tokens_count: "Tensor",
        ) -> "tuple[Tensor, Tensor]":
            return self._drafts.propose(
                num_tokens_no_spec,
                token_ids_gpu,
                valid_sampled_token_ids_gpu,
                valid_sampled_tokens_count,
            )

    return DeviceProposer


def register() -> None:
    """vLLM's plug-in: replace the proposer of `ngram_gpu` if GRAFT_VLLM=1."""
    if os.environ.get(SWITCH) != "1":
        return
    try:
        from vllm.v1.spec_decode import ngram_proposer_gpu
    except ImportError as error:
        raise InputError(
            f"{SWITCH}=1 needs a vLLM with the speculative method ngram_gpu, such as 0.24"
        ) from error
    found = ngram_proposer_gpu.NgramProposerGPU
    if found.__name__ == "DeviceProposer":  # vLLM loads plug-ins more than once
        return
    ngram_proposer_gpu.NgramProposerGPU = proposer = proposer_of(found)
    runner = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if runner is not None:
        vars(runner)["NgramProposerGPU"] = proposer
