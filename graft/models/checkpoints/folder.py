"""Model folders: required files, completeness, fingerprints of weights."""

import hashlib
import json
import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any

from graft.errors import CheckpointError

MANIFEST = "graft.json"
SOURCE = "source"  # the manifest's path of a GGUF file with the weights, "" where there is none
FORMAT = 1
WEIGHTS = ".safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
PICKLES = ("*.bin", "*.pt", "*.pth")
SAMPLE = 256


def check_folder(folder: Path, *, tokenizer: bool = False) -> None:
    """Refuse a folder that cannot be loaded; reads headers only, never the weights."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; give one with config.json and safetensors"
        )
    config = folder / "config.json"
    if not config.is_file():
        raise CheckpointError(f"{folder} has no config.json; is it a model's folder?")
    read_json(config)
    files = weight_files(folder)
    if not files:
        pickles = [file.name for pattern in PICKLES for file in folder.glob(pattern)]
        found = f"only {pickles[0]}: convert to safetensors first" if pickles else "no weights"
        raise CheckpointError(f"{folder} has no .safetensors files ({found})")
    for file in files:
        read_header(file)
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer.json; copy the model's tokenizer files there"
        )


def weight_files(folder: Path) -> list[Path]:
    """The shards the index names, or every safetensors file of the folder."""
    index = folder / INDEX
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map; download it again")
    files = [folder / str(name) for name in sorted(set(shards.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{folder} lacks {file.name}, named in {INDEX}; download it again"
            )
    return files


def read_json(file: Path) -> dict[str, Any]:
    """The file's object; CheckpointError with the file's name."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds no JSON object; download it again")
    return content


def fingerprint(folder: Path) -> str:
    """Hex digest of the weights' identity: that of the GGUF file they come from, packed or widened;
    checksums where a manifest has them; else config.json, names, sizes, safetensors headers and a
    few bytes out of every tensor."""
    digest = hashlib.sha256()
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        weights = {n: e["sha256"] for n, e in manifest["files"].items() if n.endswith(WEIGHTS)}
        digest.update(json.dumps([FORMAT, manifest["source_sha256"] or weights]).encode())
        return digest.hexdigest()
    digest.update((folder / "config.json").read_bytes())
    for file in weight_files(folder):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        _digest_samples(file, digest)
    return digest.hexdigest()


def source_of(folder: Path) -> Path | None:
    """The GGUF file that a folder's weights are in; CheckpointError where it is gone."""
    if not (folder / MANIFEST).is_file() or not (source := read_manifest(folder)[SOURCE]):
        return None
    if not Path(source).is_file():
        raise CheckpointError(f"{folder.name} needs {source}, which is gone")
    return Path(source)


def write_manifest(folder: Path, source_sha256: str, source: str = "") -> None:
    """Write graft.json: the folder's source and the checksum of each of its files."""
    manifest = {
        "format": FORMAT,
        "source_sha256": source_sha256,
        SOURCE: source,
        "transformers": version("transformers"),
        "files": {
            file.name: {"size": file.stat().st_size, "sha256": file_sha256(file)}
            for file in sorted(folder.iterdir())
        },
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; CheckpointError where its format is another."""
    manifest = {"source_sha256": "", SOURCE: ""} | read_json(folder / MANIFEST)
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or not isinstance(files, dict) or not files:
        raise CheckpointError(f"{folder / MANIFEST} has another format; convert the model again")
    for entry in files.values():
        if not isinstance(entry, dict) or not {"size", "sha256"} <= entry.keys():
            raise CheckpointError(f"{folder / MANIFEST} is damaged; convert the model again")
    return manifest


def check_manifest(folder: Path, *, verify: bool = False) -> None:
    """Compare the files with the manifest: sizes always, checksums with `verify`."""
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}; convert the model again")
    for name, entry in read_manifest(folder)["files"].items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != entry["size"]:
            found = "is missing" if size is None else f"has {size} bytes, not {entry['size']}"
            raise CheckpointError(f"{folder} is damaged ({name} {found}); convert the model again")
        if verify and file_sha256(file) != entry["sha256"]:
            raise CheckpointError(
                f"{folder} is damaged (checksum of {name}); convert the model again"
            )


def file_sha256(file: Path) -> str:
    """Hex digest of the file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_header(file: Path) -> dict[str, Any]:
    """Where the data starts and each tensor's offsets, checked against the file's size."""
    try:
        return _header(file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror})") from error


def _header(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise CheckpointError(f"{file} is truncated ({size} bytes); download it again")
        try:
            header = json.loads(opened.read(length))
            tensors = {k: v["data_offsets"] for k, v in header.items() if k != "__metadata__"}
            end = 8 + length + max((int(stop) for _, stop in tensors.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{file} is not a safetensors file; download it again") from error
    if end != size:
        raise CheckpointError(f"{file} is truncated ({size} of {end} bytes); download it again")
    return {"start": 8 + length, "tensors": tensors}


def _digest_samples(file: Path, digest: Any) -> None:  # noqa: ANN401
    """Two models of one shape have equal headers, so a few bytes of every tensor are hashed too."""
    header = read_header(file)
    with file.open("rb") as opened:
        digest.update(opened.read(header["start"]))
        for start, stop in header["tensors"].values():
            opened.seek(header["start"] + (start + stop) // 2)
            digest.update(opened.read(min(SAMPLE, stop - (start + stop) // 2)))
