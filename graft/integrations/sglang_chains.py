"""Chains for SGLang's requests, found on the device: the host waits for no step.

Trees and texts of all requests are searched on the host (`sglang_trees.py`), which has to know the
last step's tokens first. Where every draft is a chain and each request drafts from its own texts,
tokens and lengths can stay on the device, as they do in steps without drafts. Attention must be
causal without a mask, because a mask's size depends on the lengths.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from graft.integrations.device_drafts import DeviceDrafts, ReportedRates
from graft.integrations.row_texts import BORDER, room, row_text
from graft.integrations.sglang_fields import Texts

if TYPE_CHECKING:
    from torch import Tensor

CAUSAL = {"FlashAttentionBackend"}  # SGLang's attention that reads no mask for chains
TEXT = "graft_text"  # attribute of requests: what their rows begin with


def wants_only_chains(worker: Any) -> bool:  # noqa: ANN401
    """Whether an SGLang worker of ours wants chains from each request's own texts, and neither its
    attention nor its positions (those of images are computed on the host) need more."""
    runner, attention = worker.model_runner, worker.model_runner.attn_backend
    on_device = type(attention).__name__ in CAUSAL and not attention.needs_cpu_seq_lens
    chains = worker.topk == 1 and not worker.trees.share_texts
    return chains and on_device and not runner.model_config.model_is_mrope


def chains_of(worker: Any) -> "Chains":  # noqa: ANN401
    """For its requests; the kernels are compiled."""
    config = worker.model_runner.model_config
    places, most = worker.req_to_token_pool.req_to_token.shape[0], worker.draft_token_num - 1
    return Chains(places, config.context_len, most, config.vocab_size, worker.device)


class PlacedDrafts(DeviceDrafts):
    """Drafts of SGLang's batches, whose texts stay at the places of their requests."""

    def append(
        self,
        tokens: "Tensor",
        counts: "Tensor | None",
        text: "Tensor",
        places: "Tensor",
    ) -> None:
        """See `append_counted`."""
        from graft.kernels.copy_triton import append_counted

        append_counted(tokens, counts, text, self._state, places)

    def warm_up(self, text: "Tensor") -> None:
        """Compile the kernels for texts of that shape; the first row of it is overwritten."""
        import torch

        place = torch.zeros(1, dtype=torch.int64, device=text.device)
        for kind, counts in product((torch.int32, torch.int64), (None, place.int())):
            self.append(place[:, None].to(kind), counts, text, place)
        self.compile(text, newest=True)


class Chains:
    """The texts of the running requests on the device, at their places in SGLang's pool."""

    def __init__(self, places: int, context: int, most: int, vocabulary: int, device: Any) -> None:  # noqa: ANN401
        """At most `most` draft tokens for requests at so many places."""
        import torch

        device = torch.device(device)
        on_gpu, width = device.type == "cuda", context + most + 1 + room()
        self._drafts = PlacedDrafts(most, places, vocabulary, device)
        self._vocabulary = vocabulary
        self._text = torch.zeros(places, width, dtype=torch.int32, device=device)
        self._reported = torch.zeros(places, dtype=torch.int32, pin_memory=on_gpu)
        self._settled = ReportedRates()
        self._found = False  # what the texts may go on with
        self._drafts.warm_up(self._text)

    def begin(self, batch: Any, read: Callable[[Any], Texts]) -> None:  # noqa: ANN401
        """Prompts are computed: write the tokens of each request that are known, behind its texts,
        which are read once."""
        import torch

        rows = {}
        for request, place in zip(batch.reqs, batch.req_pool_indices_cpu.tolist(), strict=True):
            if not hasattr(request, TEXT):
                texts = read(request)
                given = [each for each in (*texts.documents, texts.prediction) if each]
                setattr(request, TEXT, row_text(request.rid, given))
            tokens = torch.tensor([*request.origin_input_ids, *request.output_ids]).int()
            tokens = tokens.where(tokens < self._vocabulary, BORDER)  # others stand for images
            before = getattr(request, TEXT)
            rows[place] = tokens if before is None else torch.cat([before, tokens])
        self._drafts.write(self._text, rows)
        self._reported.copy_(self._drafts.rates, non_blocking=True)

    def follow(
        self,
        batch: Any,  # noqa: ANN401
        tokens: "Tensor",
        counts: "Tensor | None",
        *,
        prompts: bool = False,
    ) -> None:
        """The new tokens [B, N] of a batch, counts [B] of them or one of each. Finds what may be
        next, in plain steps one time in SEARCHED; not behind prompts, as others decode too."""
        places = batch.req_pool_indices
        self._drafts.append(tokens, counts, self._text, places)
        self._found = self._drafts.searches(plain=counts is None) and not prompts
        if self._found:
            self._drafts.search(self._text, len(tokens), places)
            self._drafts.draft(0, self._text, len(tokens), places)
            self._reported.copy_(self._drafts.rates, non_blocking=True)

    def newest(self, batch: Any) -> "Tensor":  # noqa: ANN401
        """The newest token of each request [B]."""
        return self._drafts.newest[batch.req_pool_indices]

    def rates(self, batch: Any) -> list[float]:  # noqa: ANN401
        """Acceptance rates of what was found for requests, as far as they are known."""
        places = batch.req_pool_indices_cpu.tolist()
        by_name = {each.rid: place for each, place in zip(batch.reqs, places, strict=True)}
        return [rate for rate in self._settled.read(self._reported, by_name).values() if rate]

    def draft(self, places: "Tensor", count: int) -> "Tensor":
        """The newest token of each of the requests at these places and so many behind it, of which
        all are 0 where nothing is found."""
        rows = len(places)
        if not self._found:
            self._drafts.search(self._text, rows, places)
        return self._drafts.draft(count, self._text, rows, places, newest=True)

    def verify_input(self, worker: Any, batch: Any) -> None:  # noqa: ANN401
        """Make a batch that decodes one that verifies a chain of `draft_token_num` nodes each, as
        NGRAMWorker makes it of trees from the host."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.speculative import ngram_worker
        from sglang.srt.speculative.ngram_info import NgramVerifyInput

        requests, nodes, places = len(batch.reqs), worker.draft_token_num, batch.req_pool_indices
        tokens = self.draft(places, nodes - 1).flatten()
        index, following, siblings = _links(requests, nodes, worker.device)
        ends = batch.seq_lens + nodes
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = tokens
        batch.out_cache_loc = ngram_worker.assign_extend_cache_locs_func(
            req_pool_indices=places,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=ends,
            batch_size=requests,
            draft_token_num=nodes,
            device=worker.device,
        )
        batch.spec_info = NgramVerifyInput(
            draft_token=tokens,
            custom_mask=worker.tree_mask_batch[requests],  # not read
            positions=(batch.seq_lens[:, None] + index[0]).flatten(),
            retrieve_index=index,
            retrieve_next_token=following,
            retrieve_next_sibling=siblings,
            draft_token_num=nodes,
        )


@lru_cache(512)
def _links(requests: int, nodes: int, device: Any) -> "tuple[Tensor, Tensor, Tensor]":  # noqa: ANN401
    """Of chains: numbers of their nodes, of the next node in each, and no siblings; all [B, N]."""
    import torch

    index = torch.arange(requests * nodes, device=device).view(requests, nodes)
    following = torch.arange(1, nodes + 1, device=device).repeat(requests, 1)
    following[:, -1] = -1
    return index, following, torch.full_like(index, -1)
