"""The modules of draft heads, named like those of a Llama layer in transformers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graft.models.heads.config import HeadConfig
from graft.models.heads.row_masks import Mask, masked_attention
from graft.models.rope import PLAIN, rope_of, rotary_tables

Rotary = tuple[Tensor, Tensor]  # cosine, sine [B, 1, T, D]


class Norm(nn.Module):
    """Root-mean-square norm, computed in 32 bits."""

    def __init__(self, config: HeadConfig, size: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size or config.hidden))
        self.epsilon = config.epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype."""
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.epsilon).to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate) * up)."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.inner, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.inner, bias=False)
        self.down_proj = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., E] to [..., E]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class CrossAttention(nn.Module):
    """Attention to given keys and values of one or several layers, each with its own heads."""

    def __init__(self, config: HeadConfig, layers: int = 1, inputs: int | None = None) -> None:
        super().__init__()
        self.head_size, self.groups = config.head_size, config.heads // config.kv_heads
        width = layers * config.heads * config.head_size
        self.q_proj = nn.Linear(inputs or config.hidden, width, bias=config.attention_bias)
        self.o_proj = nn.Linear(width, config.hidden, bias=False)
        self.q_norm: nn.Module = nn.Identity()

    def queries(self, x: Tensor, rotary: Rotary) -> Tensor:
        """[B, T, E] to rotated [B, H, T, D]."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), rotary)

    def attend(  # noqa: PLR0913
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Mask,
        gate: Tensor | None = None,
    ) -> Tensor:
        """[B, T, E] from keys and values [B, K, S, D]; zeros for a column that sees nothing."""
        keys, values = keys.to(queries.dtype), values.to(queries.dtype)
        return self.joined(masked_attention(queries, keys, values, mask), gate)

    def joined(self, attended: Tensor, gate: Tensor | None = None) -> Tensor:
        """[B, T, E]: the output projection of heads [B, H, T, D], times their gate if any."""
        attended = attended if gate is None else attended * gate
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class SelfAttention(CrossAttention):
    """Attention with keys and values of its own; `inputs` is the width of its inputs."""

    def __init__(self, config: HeadConfig, inputs: int | None = None) -> None:
        super().__init__(config, inputs=inputs)
        width, inputs = config.kv_heads * config.head_size, inputs or config.hidden
        self.k_proj = nn.Linear(inputs, width, bias=config.attention_bias)
        self.v_proj = nn.Linear(inputs, width, bias=config.attention_bias)
        self.k_norm: nn.Module = nn.Identity()
        if config.head_norms:
            self.q_norm, self.k_norm = (Norm(config, config.head_size) for _ in range(2))
        self.g_proj: nn.Linear | None = None
        if config.gated:
            self.g_proj = nn.Linear(inputs, config.heads * config.head_size, bias=False)

    def keys_values(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """[B, T, E] to rotated keys and values [B, K, T, D]."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), rotary), self._split(self.v_proj(x))

    def gate(self, x: Tensor) -> Tensor | None:
        """[B, H, T, D] of [B, T, E]; None for attention without a gate."""
        return None if self.g_proj is None else self._split(self.g_proj(x)).sigmoid()


class Positions(nn.Module):
    """The target's rotary embedding."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size = config.head_size
        if config.rope.get("rope_type") == PLAIN:  # the share of others is in their parameters
            size = int(size * config.rotary_share)
        rope = rope_of(config.rope, size, config.positions)
        self.register_buffer("frequencies", rope.frequencies, persistent=False)
        self.scaling = rope.scaling

    def forward(self, positions: Tensor) -> Rotary:
        """Cosine and sine [B, 1, T, D] float32 at positions [B, T]."""
        tables = rotary_tables(positions, self.frequencies, self.scaling)
        cosine, sine = (torch.cat([each, each], -1)[:, None] for each in tables)
        return cosine, sine


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """[B, heads, T, D] rotated, in its own dtype; channels beyond the rotary's stay as they are."""
    cosine, sine = rotary
    size = cosine.shape[-1]
    if size < x.shape[-1]:
        return torch.cat([rotate(x[..., :size], rotary), x[..., size:]], -1)
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat([-second, first], -1) * sine).to(x.dtype)


def reversed_blocks(x: Tensor, count: int, dim: int) -> Tensor:
    """The same with so many equal blocks along a dimension in the opposite order."""
    return x if count == 1 else torch.cat(x.chunk(count, dim)[::-1], dim)


def linear_of(weight: Tensor) -> nn.Linear:
    """A layer with this weight [O, I], which is not copied."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def all_ids(config: HeadConfig) -> Tensor:
    """A draft vocabulary of the first ids, until the head's own is set."""
    return torch.arange(config.draft_vocabulary, device="cpu")
