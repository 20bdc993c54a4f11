"""Whole steps of a decoder with random weights: as Graft runs it, and eagerly.

Speed depends on sizes, not on what weights say, so nothing is downloaded.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.attention import free_memory
from benchmarks.kernels.problem import random_tree
from benchmarks.kernels.settings import KernelPlan
from benchmarks.kernels.shapes import all_weights
from benchmarks.kernels.timing import latency
from graft.errors import InputError
from graft.models.arena import Extent
from graft.models.forward import LeanForward
from graft.models.gpu import fastest_attention
from graft.models.language_model import Forward, LanguageModel
from graft.models.llama_shape import read_llama
from graft.models.load import build_forward

FILLED = 256  # rows of random keys and values written at a time
GIB = 1 << 30


def refuse_too_large(plan: KernelPlan) -> None:
    """Before minutes are spent: weights (twice, while they are laid out) and the cache."""
    shape = plan.shape
    cache = shape.layers * shape.kv_numbers(plan.rows) * plan.itemsize
    size = plan.itemsize if plan.device.type == "cuda" else 4  # a CPU reads them in fp32
    needed = 2 * all_weights(shape) * size + cache
    free = free_memory(plan.device)
    if needed > free:
        raise InputError(
            f"steps of {shape.name} need about {needed / GIB:.1f} GiB and {free / GIB:.1f} are "
            "free; lower --layers or --contexts, or give --parts attention"
        )


def random_network(plan: KernelPlan) -> "Any":  # noqa: ANN401
    """A Llama of that shape, its weights drawn on the device with a spread of 0.02."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = plan.shape
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=plan.rows + 1,
        tie_word_embeddings=shape.tied,
    )
    on_gpu = plan.device.type == "cuda"
    torch.manual_seed(0)
    with plan.device:
        network = AutoModelForCausalLM.from_config(
            config,
            dtype=plan.torch_dtype if on_gpu else torch.float32,
            attn_implementation="eager",
        )
    return network.eval()


def fastest(plan: KernelPlan) -> tuple[Forward, str]:
    """The forward Graft would take, and its name."""
    network = random_network(plan)
    return build_forward(network, name=plan.shape.name, dtype=plan.torch_dtype)


def eager(plan: KernelPlan) -> tuple[Forward, str]:
    """The lean forward operation by operation, over the same attention."""
    network = random_network(plan).to(plan.torch_dtype)
    return LeanForward(*read_llama(network), fastest_attention(plan.device)), "eager"


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a model takes on the device; `peak` and `reserved` are None on a CPU."""

    weights: int
    cache: int
    peak: int | None
    reserved: int | None


@dataclass(slots=True)
class Stepper:
    """A model with one sequence whose rows hold random keys and values."""

    plan: KernelPlan
    name: str
    model: LanguageModel
    extent: Extent
    before: int  # bytes that others had taken
    opening: int  # bytes at the peak of making the cache, those of others included

    @classmethod
    def open(cls, plan: KernelPlan, make: Callable[[KernelPlan], tuple[Forward, str]]) -> "Stepper":
        """Build the network, allocate the cache of the largest point, fill it."""
        device = plan.device
        _clear(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        forward, name = make(plan)
        _clear(device)  # of the network, whose weights alone the forward keeps
        model = LanguageModel(
            forward,
            vocabulary=plan.shape.vocabulary,
            context_length=plan.rows + 1,
        )
        _forget_peak(device)
        extent = model.open(plan.rows)
        opening = _peak(device)
        _fill(model, extent, plan)
        return cls(plan, name, model, extent, before, opening)

    def call(self, context: int, nodes: int) -> Callable[[], object]:
        """One step: a random tree of so many nodes on top of so many tokens."""
        tree = random_tree(nodes, self.plan.shape.vocabulary, seed=nodes)

        def step() -> object:
            self.extent.length = context
            return self.model.score([self.extent], [tree])

        return step

    def time(self, context: int, nodes: int) -> tuple[float, float | None]:
        """Seconds of a step, and those of the device alone."""
        plan = self.plan
        return latency(self.call(context, nodes), repeats=plan.repeats, device=plan.device)

    def read_bytes(self, context: int, nodes: int) -> tuple[int, int]:
        """Of weights and of keys and values that a step cannot but read."""
        shape = self.plan.shape
        kv = self.model.arena.storage.row_bytes * (context + nodes)
        return shape.read_weights * self.plan.itemsize, kv

    def memory(self) -> Bytes:
        """At the largest point, with captured graphs."""
        plan, storage = self.plan, self.model.arena.storage
        weights = all_weights(plan.shape) * plan.itemsize
        cache = storage.rows * storage.row_bytes
        if plan.device.type != "cuda":
            return Bytes(weights, cache, None, None)
        _forget_peak(plan.device)
        step = self.call(max(plan.contexts), max(plan.nodes))
        for _ in range(3):
            step()
        torch.cuda.synchronize(plan.device)
        peak = max(_peak(plan.device), self.opening) - self.before
        return Bytes(weights, cache, peak, torch.cuda.max_memory_reserved(plan.device))


def _fill(model: LanguageModel, extent: Extent, plan: KernelPlan) -> None:
    """Random numbers in every row."""
    shape, storage = plan.shape, model.arena.storage
    for first in range(0, plan.rows, FILLED):
        rows = extent.start + np.arange(first, min(first + FILLED, plan.rows))
        size = (2, shape.layers, shape.kv_heads, len(rows), shape.head_size)
        storage.write(rows, torch.randn(size, device=plan.device))


def _clear(device: torch.device) -> None:
    """Free unused memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
