"""Converts a GGUF file, once, into a folder that loads like any other model.

A packed folder holds config and tokenizer; the weights stay in the GGUF file. A converted folder
holds the weights, too, dequantised and rounded to bfloat16, so that runs in float32 and in bfloat16
share them. They are written in parts, so that conversion takes little memory.
"""

import contextlib
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from graft import home
from graft.errors import CheckpointError
from graft.models.checkpoints import folder as folders
from graft.models.checkpoints.gguf_config import (
    INNER,
    OUTER,
    ROPE_FACTORS,
    generation_config,
    model_config,
)
from graft.models.checkpoints.gguf_reader import GgufFile, damaged
from graft.models.checkpoints.gguf_tokenizer import write_tokenizer
from graft.models.checkpoints.progress import bar

if TYPE_CHECKING:
    import numpy as np

ROWS = 1 << 13  # of a tensor that are converted at once
TENSORS = "tensors.json"
SMALL_FILES = 16 << 20  # bytes that config and tokenizer take, at most
NONSENSE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, IndexError)


def convert(
    gguf_file: Path, *, progress: bool = True, verify: bool = False, sha256: str | None = None
) -> Path:
    """The converted folder in home(); converts when it is missing, damaged or outdated.

    `sha256` is the file's, where the caller has just computed it.
    """
    digest = sha256 or source_sha256(gguf_file)
    folder = converted_folder(gguf_file.stem, digest)
    if is_whole(folder, verify=verify):
        return folder
    with home.lock(folder.name), _parsing(gguf_file):
        if not is_whole(folder, verify=verify):
            _write_folder(GgufFile(gguf_file), folder, digest, progress=progress)
    return folder


def prepare(gguf_file: Path) -> Path:
    """The packed folder in home() of a file whose weights are used as they are."""
    digest = source_sha256(gguf_file)
    converted = converted_folder(gguf_file.stem, digest)
    folder = converted.with_name(f"{converted.name}-packed")
    source = str(gguf_file.absolute())
    with home.lock(folder.name), _parsing(gguf_file):
        if not is_whole(folder) or folders.read_manifest(folder)[folders.SOURCE] != source:
            gguf = GgufFile(gguf_file)
            tensor_names(gguf)
            home.require_space(SMALL_FILES)
            with home.atomic_folder(folder, needed=SMALL_FILES) as temporary:
                _write_small_files(gguf, temporary)
                _write_json(temporary / TENSORS, gguf.summary())
                folders.write_manifest(temporary, digest, source)
    return folder


def open_packed(folder: Path, gguf_file: Path) -> GgufFile:
    """The file of a packed folder, without parsing its metadata."""
    return GgufFile(gguf_file, folders.read_json(folder / TENSORS))


def converted_folder(stem: str, digest: str) -> Path:
    """Where a GGUF of this name and SHA-256 is kept once converted."""
    return home.home() / "models" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', stem)}-{digest[:12]}"


def is_whole(folder: Path, *, verify: bool = False) -> bool:
    """Whether the folder exists and matches its manifest."""
    if not folder.is_dir():
        return False
    try:
        folders.check_manifest(folder, verify=verify)
    except CheckpointError:
        return False
    return True


def source_sha256(file: Path) -> str:
    """SHA-256 of the file, cached by its path, size and modification time."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; check the path of the .gguf file")
    try:
        status = file.stat()
        key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
        memory = home.home() / "models" / "checksums.json"
        known = _remembered(memory)
        if key not in known:
            digest = folders.file_sha256(file)
            with home.lock("checksums"), home.atomic_file(memory) as temporary:
                known = _remembered(memory) | {key: digest}
                temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror})") from error
    return known[key]


def _remembered(memory: Path) -> dict[str, str]:
    """The cached checksums; none where the file is missing or damaged."""
    try:
        return {str(k): str(v) for k, v in json.loads(memory.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        return {}


@contextlib.contextmanager
def _parsing(gguf_file: Path) -> Iterator[None]:
    """Turns errors over metadata of the wrong type or size into CheckpointError."""
    try:
        yield
    except NONSENSE as error:
        raise damaged(gguf_file, f"{type(error).__name__}: {str(error)[:80]}") from error


def _write_folder(gguf: GgufFile, folder: Path, digest: str, *, progress: bool) -> None:
    names = tensor_names(gguf)
    size = 2 * sum(_elements(gguf, name) for name in names)
    needed = size + SMALL_FILES
    home.require_space(needed)
    with home.atomic_folder(folder, needed=needed) as temporary:
        _write_small_files(gguf, temporary)
        with bar(f"converting {gguf.path.name}", size, show=progress) as advance:
            _write_weights(gguf, names, temporary / "model.safetensors", advance)
        folders.write_manifest(temporary, digest)


def _write_small_files(gguf: GgufFile, folder: Path) -> None:
    """Config and tokenizer."""
    config = model_config(gguf)
    write_tokenizer(gguf, folder)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(gguf))


def tensor_names(gguf: GgufFile) -> dict[str, str]:
    """GGUF's tensor names to transformers'; an unknown tensor is an error."""
    names = {}
    for name in gguf.tensors:
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if name in OUTER:
            names[name] = OUTER[name]
        elif block and block[2] in INNER:
            names[name] = f"model.layers.{block[1]}.{INNER[block[2]]}.{block[3]}"
        elif name != ROPE_FACTORS:
            raise CheckpointError(
                f"{gguf.path.name} holds the tensor {name!r}, which no supported model has; "
                "use the model's safetensors folder instead"
            )
    return names


def _write_weights(
    gguf: GgufFile, names: dict[str, str], file: Path, advance: Callable[[int], None]
) -> None:
    """One safetensors file, a tensor at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for theirs, ours in names.items():
        size = 2 * _elements(gguf, theirs)
        header[ours] = {
            "dtype": "BF16",
            "shape": list(gguf.tensors[theirs].shape),
            "data_offsets": [position, position + size],
        }
        position += size
    with file.open("wb") as opened:
        _write_header(opened, header)
        for theirs, ours in names.items():
            for part in _weight(gguf, theirs):
                opened.write(_bfloat16(part, gguf.path, theirs).tobytes())
            advance(header[ours]["data_offsets"][1])


def _write_header(opened: BinaryIO, header: dict[str, Any]) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    opened.write(struct.pack("<Q", len(text)) + text)


def stored_order(gguf: GgufFile, name: str) -> "np.ndarray | None":
    """Which stored row is each of PyTorch's: GGUF interleaves rotary pairs of Llama's q and k."""
    import numpy as np

    part = name.split(".")[-2]
    if gguf.metadata["general.architecture"] != "llama" or part not in ("attn_q", "attn_k"):
        return None
    heads = gguf.metadata["llama.attention.head_count"]
    if part == "attn_k":
        heads = gguf.metadata.get("llama.attention.head_count_kv", heads)
    return np.arange(gguf.tensors[name].shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _weight(gguf: GgufFile, name: str) -> Iterator["np.ndarray"]:
    """The tensor's rows as PyTorch has them, some at a time."""
    order = stored_order(gguf, name)
    for first in range(0, gguf.tensors[name].shape[0], ROWS):
        rows = slice(first, first + ROWS)
        yield gguf.load(name, rows if order is None else order[rows])


def _bfloat16(values: "np.ndarray", path: Path, name: str) -> "np.ndarray":
    """Rounded to the nearest even bfloat16, as uint16."""
    import numpy as np

    if not np.isfinite(values).all():
        raise damaged(path, f"{name} holds values that are not finite")
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _elements(gguf: GgufFile, name: str) -> int:
    count = 1
    for size in gguf.tensors[name].shape:
        count *= size
    return count


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
