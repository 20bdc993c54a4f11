"""What SGLang does not do on a CPU, and what the tests want to see of it."""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def overlap_with_speculation(hook: ModuleType) -> None:
    """A step is launched before the last one's result is processed, as on a GPU."""
    hook._disable_overlap_schedule_for_cpu = lambda _: None


def attention_to_trees(native: ModuleType) -> None:
    """Its attention in plain torch knows no draft trees. To chains it is causal, whatever the mask
    says, as FlashAttention is with --speculative-ngram-max-bfs-breadth 1."""
    from sglang.srt.runtime_context import get_spec

    backend = native.TorchNativeAttnBackend
    extend = backend.forward_extend

    def forward_extend(self: Any, *given: Any, **options: Any) -> Tensor:
        q, k, v, layer, batch, *_ = given
        if not batch.forward_mode.is_target_verify():
            return extend(self, *given, **options)
        pool, place = self.token_to_kv_pool, layer.layer_id
        pool.set_kv_buffer(layer, native.KVWriteLoc(batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(place), pool.get_value_buffer(place)
        lengths, nodes = batch.seq_lens.tolist(), batch.spec_info.draft_token_num
        rows = q.view(len(lengths), nodes, layer.tp_q_head_num, layer.qk_head_dim)
        columns = [nodes * (length + nodes) for length in lengths]
        causal = get_spec().speculative_eagle_topk == 1
        masks = [None] * len(lengths) if causal else batch.spec_info.custom_mask.split(columns)
        found = []
        for i, mask in enumerate(masks):
            table = self.req_to_token_pool.req_to_token[batch.req_pool_indices[i]]
            slots = table[: lengths[i] + nodes].long()
            if causal:
                mask = torch.ones(nodes, len(slots), dtype=torch.bool).tril(lengths[i])
            heads = (rows[i], keys[slots], values[slots])
            attended = scaled_dot_product_attention(
                *(each.transpose(0, 1)[None] for each in heads),
                attn_mask=mask.view(nodes, -1),
                scale=layer.scaling,
                enable_gqa=True,
            )
            found.append(attended[0].transpose(0, 1).reshape(nodes, -1))
        return torch.cat(found)

    backend.forward_extend = forward_extend
    backend.needs_cpu_seq_lens = False  # as FlashAttention


def written_widths(steps: ModuleType) -> None:
    """Draft tokens of every step, as lines of $GRAFT_STEPS."""
    launched = steps.Pace.launched

    def write(self: Any, width: int | None, rests: int | None = None) -> None:
        _write(width)
        launched(self, width, rests)

    steps.Pace.launched = write


def _write(step: object) -> None:
    with Path(os.environ["GRAFT_STEPS"]).open("a") as file:
        file.write(json.dumps(step) + "\n")


def attention_without_a_mask(chains: ModuleType) -> None:
    """To chains, as FlashAttention's; each step with them is a line of $GRAFT_STEPS."""
    chains.CAUSAL = {"TorchNativeAttnBackend"}
    verify_input = chains.Chains.verify_input

    def write(*given: Any) -> None:
        _write("chains")
        verify_input(*given)

    chains.Chains.verify_input = write


OF_MODULES = {
    "graft.integrations.sglang_chains": attention_without_a_mask,
    "sglang.srt.arg_groups.speculative_hook": overlap_with_speculation,
    "sglang.srt.layers.attention.torch_native_backend": attention_to_trees,
    "graft.integrations.sglang_steps": written_widths,
}
