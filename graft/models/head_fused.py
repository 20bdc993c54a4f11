"""A head's levels on a GPU in few launches, for graphs: norms, gates and sums are part of products,
and guesses lie behind the rows of the known text, where one attention sees both.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graft.kernels.decoder_triton import add_norm, rotate_and_store, swiglu
from graft.kernels.product_triton import product
from graft.kernels.tree_attention_triton import PlacedPlan, attend
from graft.models.forward_triton import FEW
from graft.models.head_layers import Norm
from graft.models.head_runner import HeadRunner, chosen
from graft.models.storage import RowStorage

AHEAD = 64  # positions that guesses may lie beyond the target's context


@dataclass(frozen=True, slots=True)
class Looking:
    """How the nodes of a level look at rows: a plan on the device, all but who sees whom."""

    tile: int
    tasks: Tensor  # [T, COLUMNS] int32
    parts: Tensor  # [N] int32
    most_parts: int


class Desk(Protocol):
    """What a round starts from, where a graph finds it, for B sequences."""

    inputs: Tensor  # [B, 1, E]: what the layer reads for the roots
    roots: Tensor  # [B, 1] int64: their positions
    tree_rows: Tensor  # [B, 1] int64: the first rows for guesses; far below 0 for nobody's

    def looking(self, whose: str, depth: int) -> Looking:
        """At rows of the head ("own") or of the target ("target"), so deep below the roots."""


class FusedHead:
    """A head's weights, side by side where they are used together, and its tables of angles."""

    def __init__(self, runner: HeadRunner) -> None:
        self.runner, head, attention = runner, runner.head, runner.attention
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([part.weight.detach() for part in parts])
        biased = parts[0].bias is not None
        self.qkv_bias = torch.cat([part.bias.detach() for part in parts]) if biased else None
        mlp = runner.block.mlp
        self.gate_up = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
        positions = torch.arange(runner.model.context_length + AHEAD, device=runner.device)
        half = runner.config.head_size // 2
        with torch.inference_mode():
            self.cosine, self.sine = (
                each[0, 0, :, :half].contiguous() for each in head.rotary(positions[None])
            )

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """[N, E]: what the layer reads for guesses [B, W] whose parents' outputs are these."""
        runner = self.runner
        embeddings = runner.embed(tokens).flatten(0, 1)
        if runner.window is not None:
            return embeddings.contiguous()
        fc = runner.head.fc
        return multiply(torch.cat([embeddings, features.flatten(0, 1)], -1), fc.weight, fc.bias)


class FusedRound:
    """See Round."""

    def __init__(self, fused: FusedHead, desk: Desk) -> None:
        self._fused, self._runner, self._desk = fused, fused.runner, desk
        self._depth, self._above = 0, 0  # levels and rows of guesses so far
        self._outputs: Tensor | None = None
        self._bits: Tensor | None = None  # [B, W] int64: which rows of guesses a node sees

    @torch.inference_mode()
    def root(self) -> Tensor:
        """See Round."""
        hidden = self._desk.inputs[:, 0].clone()
        nowhere = torch.full_like(self._desk.roots, -1)  # its row is known already
        return self._through(hidden, nowhere, torch.zeros_like(self._desk.roots))

    @torch.inference_mode()
    def level(self, tokens: Tensor, above: Tensor) -> Tensor:
        """See Round."""
        places = self._above + torch.arange(tokens.shape[1], device=tokens.device)
        bits = torch.ones_like(places).bitwise_left_shift(places).expand_as(tokens)
        if self._depth:
            bits = self._bits.gather(1, above) | bits
        self._bits, self._depth = bits.contiguous(), self._depth + 1
        hidden = self._fused.inputs(tokens, chosen(self._outputs, above))
        outputs = self._through(hidden, self._desk.tree_rows + places, self._bits)
        self._above += tokens.shape[1]
        return outputs

    def _through(self, hidden: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
        """hidden [N, E] is changed in place; rows and bits are [B, W]."""
        fused, runner = self._fused, self._runner
        positions = (self._desk.roots + self._depth).expand_as(rows).flatten().contiguous()
        norm = None if runner.window is None else _norm(runner.head.input_layernorm)
        qkv = multiply(hidden, fused.qkv, fused.qkv_bias, norm=norm)
        keys, values = runner.storage.kv[:, 0]
        query = rotate_and_store(
            qkv, positions, fused.cosine, fused.sine, rows.flatten(), keys, values, None, 0.0
        )
        attended = self._attend(query, runner.storage, 0, self._placed("own", positions, bits))
        multiply(attended, runner.attention.o_proj.weight, residual=hidden)
        if runner.window is not None:
            self._cross(hidden, positions, bits)
        block = runner.block
        gated = multiply(
            hidden, fused.gate_up, norm=_norm(block.post_attention_layernorm), gated=True
        )
        multiply(gated, block.mlp.down_proj.weight, residual=hidden)
        final = getattr(runner.head, "norm", None)
        outputs = add_norm(hidden, None, *_norm(final)) if isinstance(final, Norm) else hidden
        self._outputs = outputs.view(*rows.shape, -1)
        return self._outputs

    def _cross(self, hidden: Tensor, positions: Tensor, bits: Tensor) -> None:
        """Add what the target's rows say, in place."""
        head, cross = self._runner.head, self._runner.head.cross_attn
        query = multiply(
            hidden, cross.q_proj.weight, cross.q_proj.bias, norm=_norm(head.cross_layernorm)
        )
        query = query.view(len(hidden), -1, self._runner.config.head_size)
        cosine, sine = (table[positions][:, None] for table in self._angles)
        first, second = query.chunk(2, -1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)
        plan = self._placed("target", positions, bits)
        storage = self._runner.model.arena.storage
        attended = self._attend(turned.to(query.dtype), storage, -1, plan)
        multiply(attended, cross.o_proj.weight, residual=hidden)

    @property
    def _angles(self) -> tuple[Tensor, Tensor]:
        return self._fused.cosine, self._fused.sine

    def _attend(self, query: Tensor, storage: RowStorage, layer: int, plan: PlacedPlan) -> Tensor:
        keys, values = storage.kv[:, layer]
        found = attend(query, keys, values, plan, scale=self._runner.scale)
        return found.view(len(query), -1)

    def _placed(self, whose: str, positions: Tensor, bits: Tensor) -> PlacedPlan:
        looking = self._desk.looking(whose, self._depth)
        return PlacedPlan(
            looking.tile, looking.tasks, looking.parts, bits.reshape(-1, 1), positions,
            looking.most_parts,
        )  # fmt: skip


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Our own product for few rows, the library's and what stands around it for more; see
    `product`."""
    if len(x) <= FEW and x.dtype != torch.float16:
        return product(x, weight, norm=norm, bias=bias, residual=residual, gated=gated)
    if norm:
        x = add_norm(x, None, *norm)
    y = F.linear(x, weight, bias)
    y = swiglu(y) if gated else y
    return y if residual is None else residual.add_(y)


def _norm(module: nn.Module) -> tuple[Tensor, float]:
    return module.weight.detach(), module.epsilon
