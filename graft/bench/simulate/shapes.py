"""Sizes of decoders, known by name or spelled out, and the lower bounds of their steps."""

from dataclasses import dataclass

from graft.errors import InputError

SPELLED = "HEADS/KV_HEADS/HEAD_SIZE or HEADS/KV_HEADS/HEAD_SIZE/LAYERS/HIDDEN/INNER/VOCABULARY"


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-shaped decoder; one given by its heads alone has no layers.

    `tied`: the output layer is the input embedding.
    """

    name: str
    heads: int
    kv_heads: int
    head_size: int
    layers: int = 0
    hidden: int = 0
    inner: int = 0
    vocabulary: int = 0
    tied: bool = False

    @property
    def read_weights(self) -> int:
        """Numbers that a step reads: all weights but an untied input embedding."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden

    def kv_numbers(self, rows: int) -> int:
        """Numbers in the keys and values of one layer."""
        return 2 * self.kv_heads * self.head_size * rows


KNOWN: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("smollm2", 9, 3, 64, 30, 576, 1536, 49152, tied=True),
        Shape("qwen-0.5b", 14, 2, 64, 24, 896, 4864, 151936, tied=True),
        Shape("llama-1b", 32, 8, 64, 16, 2048, 8192, 128256, tied=True),
        Shape("qwen-7b", 28, 4, 128, 28, 3584, 18944, 152064),
        Shape("llama-8b", 32, 8, 128, 32, 4096, 14336, 128256),
        Shape("qwen3-8b", 32, 8, 128, 36, 4096, 12288, 151936),
        Shape("llama-70b", 64, 8, 128, 80, 8192, 28672, 128256),
    )
}


def read_shape(text: str) -> Shape:
    """By a known name, or by its sizes."""
    if text in KNOWN:
        return KNOWN[text]
    try:
        sizes = [int(part) for part in text.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) not in (3, 7) or min(sizes) < 1:
        raise InputError(f"unknown shape {text!r}; choose from {', '.join(KNOWN)} or {SPELLED}")
    heads, kv_heads, head_size, layers, hidden, inner, vocabulary = [*sizes, 0, 0, 0, 0][:7]
    if heads % kv_heads:
        raise InputError(f"--shape {text}: {heads} heads are no multiple of {kv_heads} KV heads")
    if head_size % 2:
        raise InputError(f"--shape {text}: the head size must be even, not {head_size}")
    return Shape(text, heads, kv_heads, head_size, layers, hidden, inner, vocabulary)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Throughput of memory and of matrix products, per second."""

    bytes: float
    flops: float


def attention_floor(
    shape: Shape, context: int, nodes: int, itemsize: int, ceilings: Ceilings
) -> float:
    """Seconds to read the keys and values of one layer once, or to multiply by all of them."""
    rows = context + nodes
    flops = 4 * nodes * shape.heads * shape.head_size * rows
    read = shape.kv_numbers(rows) * itemsize
    return max(read / ceilings.bytes, flops / ceilings.flops)
