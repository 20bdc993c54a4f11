"""Reads GGUF files, metadata and tensors, and refuses damaged ones.

The layout is a header (magic, version, counts), key-value pairs, tensor descriptions and, aligned,
the tensors' bytes. Every length is checked against the file's size before it is used.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}
SCALARS |= {11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is outermost first, as in PyTorch; `kind` is the number of the quantisation."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """A mapped file: `metadata` and `tensors` are read, tensor bytes stay on disk until loaded.

    `known` is the `summary` of the same file, which then is not parsed again.
    """

    def __init__(self, path: Path, known: dict[str, Any] | None = None) -> None:
        self.path = path
        self._position = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        with path.open("rb") as file:
            _check_magic(path, file.read(8))
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if known is not None:
            self.metadata, self._data_start = known["metadata"], known["data_start"]
            tensors = known["tensors"].items()
            self.tensors = {name: GgufTensor(tuple(t[0]), *t[1:]) for name, t in tensors}
            return
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
            raise damaged(path, str(error)) from error

    def summary(self) -> dict[str, Any]:
        """Metadata without arrays, and where the tensors are, for JSON."""
        metadata = {k: v for k, v in self.metadata.items() if not isinstance(v, list)}
        tensors = {name: [t.shape, t.kind, t.offset] for name, t in self.tensors.items()}
        return {"metadata": metadata, "data_start": self._data_start, "tensors": tensors}

    def load(self, name: str, rows: "np.ndarray | slice | None" = None) -> "np.ndarray":
        """The tensor's values as float32, in its shape, or those of some rows."""
        import numpy as np
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType(self.tensors[name].kind)
        raw = self.raw(name) if rows is None else self.raw(name)[rows]
        try:
            with np.errstate(all="ignore"):  # values that are not finite are refused later
                values = dequantize(raw, kind)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path.name}: {name} is stored as {kind.name}, which cannot be read; "
                "use a Q4_K_M, Q8_0 or F16 file"
            ) from error
        shape = (*raw.shape[:-1], self.tensors[name].shape[-1])
        return np.asarray(values, dtype=np.float32).reshape(shape)

    def raw(self, name: str) -> "np.ndarray":
        """The tensor's stored bytes, row by row, in the mapped file."""
        import numpy as np

        tensor = self.tensors[name]
        start, count = self._data_start + tensor.offset, self.tensor_bytes(tensor)
        stored = np.frombuffer(self._bytes, np.uint8, count=count, offset=start)
        return stored.reshape(*tensor.shape[:-1], -1)

    def release(self, name: str) -> None:
        """Take the tensor's pages out of memory; they are read again when needed."""
        tensor, page = self.tensors[name], mmap.PAGESIZE
        start = -(-(self._data_start + tensor.offset) // page) * page
        length = (self._data_start + tensor.offset + self.tensor_bytes(tensor) - start) // page
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._bytes.madvise(mmap.MADV_DONTNEED, start, length * page)

    def tensor_bytes(self, tensor: GgufTensor) -> int:
        """Bytes in the file; CheckpointError for an unknown quantisation."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
        except (ValueError, KeyError) as error:
            raise damaged(self.path, f"tensor type {tensor.kind}") from error
        elements = 1
        for size in tensor.shape:
            elements *= size
        if elements == 0 or tensor.shape[-1] % block:
            raise damaged(self.path, f"a tensor of shape {tensor.shape} in blocks of {block}")
        return elements // block * block_bytes

    def _read(self) -> None:
        _, version, tensors, pairs = self._unpack("<4sIQQ")
        if version not in (2, 3):
            raise CheckpointError(
                f"{self.path.name} is GGUF version {version}; versions 2 and 3 can be read"
            )
        for _ in range(self._checked(pairs)):
            key = self._string()
            self.metadata[key] = self._value(self._unpack("<I")[0])
        for _ in range(self._checked(tensors)):
            name = self._string()
            self.tensors[name] = self._tensor()
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise damaged(self.path, f"alignment {alignment!r}")
        self._data_start = -(-self._position // alignment) * alignment
        self._check_extent()

    def _check_extent(self) -> None:
        ends = [t.offset + self.tensor_bytes(t) for t in self.tensors.values()]
        expected = self._data_start + max(ends) if ends else 0
        if expected > len(self._bytes):
            raise damaged(self.path, f"{len(self._bytes)} of {expected} bytes")

    def _tensor(self) -> GgufTensor:
        (dimensions,) = self._unpack("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise damaged(self.path, f"a tensor of {dimensions} dimensions")
        shape = self._unpack(f"<{dimensions}Q")[::-1]
        kind, offset = self._unpack("<IQ")
        return GgufTensor(shape, kind, offset)

    def _value(self, kind: int) -> Any:  # noqa: ANN401
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        if kind not in SCALARS:
            raise damaged(self.path, f"value type {kind}")
        return self._unpack(SCALARS[kind])[0]

    def _array(self) -> list[Any]:
        kind, count = self._unpack("<IQ")
        self._checked(count)
        if kind in SCALARS:
            return list(self._unpack(f"<{count}{SCALARS[kind][1]}"))
        if kind == STRING:
            return [self._string() for _ in range(count)]
        raise damaged(self.path, f"an array of type {kind}")

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        start = self._position
        self._position += self._checked(length)
        return self._bytes[start : self._position].decode()

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._bytes, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _checked(self, count: int) -> int:
        """A count of items of at least a byte each, so at most the bytes that follow."""
        if count > len(self._bytes) - self._position:
            raise damaged(self.path, "cut off in the metadata")
        return count


def format_name(kind: int) -> str:
    """GGML's name of a tensor's format."""
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType(kind).name


def damaged(path: Path, found: str) -> CheckpointError:
    """The error for a file that begins as GGUF and is invalid."""
    return CheckpointError(
        f"{path.name} is truncated or damaged ({found}); download it again and compare its checksum"
    )


def _check_magic(path: Path, start: bytes) -> None:
    if start[:4] != b"GGUF":
        found = f"starts with {start[:4]!r}" if start else "is empty"
        raise CheckpointError(
            f"{path.name} is not a GGUF file ({found}); give a .gguf file or a safetensors folder"
        )
    if len(start) < 8:
        raise damaged(path, f"{len(start)} bytes")
