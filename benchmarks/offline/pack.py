"""Pack engines, their dependencies and files for a machine without a network.

    python -m benchmarks.offline.pack OUT --wheels sglang --wheels graft --file model.gguf
    python -m benchmarks.offline.pack OUT --wheels vllm --tree results.d

writes OUT/NAME.00, OUT/NAME.01, ... for every --wheels (a list beside this file, or another one),
--file and --tree, none larger than --piece, and OUT/manifest with the sizes of the whole. There
`target.sh` joins and unpacks them. The wheels
are those of the target's Python and of Linux on x86-64; the machine that packs needs neither a GPU
nor that Python. A line of a list is a requirement, or `- PATTERN`: paths that match are left out.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LISTS = Path(__file__).parent
GLIBC = (39, 38, 35, 34, 32, 31, 28, 27, 26, 24, 17)
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC),
    *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)),
    "linux_x86_64",
)


def main() -> None:
    """Pack everything that the options name."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.wheels:
        known = LISTS / f"{name}.txt"
        source = known if known.exists() else Path(name)
        cut(packed(site_of(source, options.out, options.python)), options)
    for tree in options.tree:
        cut(packed(tree, options.out / f"{tree.name}.tar.xz"), options)
    for file in options.file:
        cut(file, options)
    write_manifest(options.out)


def site_of(source: Path, out: Path, python: str) -> Path:
    """A folder for PYTHONPATH with all wheels of a list."""
    lines = [line.strip() for line in source.read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    wheels, site = out / "wheels" / source.stem, out / source.stem
    shutil.rmtree(site, ignore_errors=True)
    download([line for line in lines if not line.startswith("- ")], wheels, python)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for path in (path for line in lines if line[:2] == "- " for path in site.glob(line[2:])):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return site


def download(requirements: Iterable[str], wheels: Path, python: str) -> None:
    """Each by itself, without what it depends on: a list names that too."""
    platforms = [word for each in PLATFORMS for word in ("--platform", each)]
    for each in requirements:
        print(each, flush=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        target = ["--python-version", python, *platforms, "-d", str(wheels)]
        if subprocess.run([*pip, *target, each], check=False).returncode:
            raise SystemExit(f"no wheel of {each} for Python {python} on Linux")


def packed(folder: Path, archive: Path | None = None) -> Path:
    """The contents of a folder as an archive beside it."""
    archive = archive or folder.with_name(folder.name + ".tar.xz")
    with (
        archive.open("wb") as file,
        subprocess.Popen(["xz", "-T0", "-2"], stdin=subprocess.PIPE, stdout=file) as xz,
    ):
        assert xz.stdin is not None
        with tarfile.open(fileobj=xz.stdin, mode="w|") as tar:
            tar.add(folder, ".")
    return archive


def cut(file: Path, options: argparse.Namespace) -> None:
    """Write the pieces of a file."""
    for old in options.out.glob(f"{file.name}.[0-9][0-9]"):
        old.unlink()
    for number, piece in enumerate(pieces(file, options.piece)):
        (options.out / f"{file.name}.{number:02d}").write_bytes(piece)
    print(f"{file.name}: {number + 1} pieces", flush=True)


def write_manifest(out: Path) -> None:
    """A line with the name and the bytes of everything of which there are pieces."""
    sizes: dict[str, int] = {}
    for piece in out.glob("*.[0-9][0-9]"):
        sizes[piece.stem] = sizes.get(piece.stem, 0) + piece.stat().st_size
    lines = [f"{name} {size}\n" for name, size in sorted(sizes.items())]
    (out / "manifest").write_text("".join(lines))


def pieces(file: Path, most: int) -> Iterator[bytes]:
    """Of at most so many bytes, at least one."""
    with file.open("rb") as source:
        piece = source.read(most)
        yield piece
        while piece := source.read(most):
            yield piece


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", action="append", default=[], help="sglang, vllm, graft or FILE")
    parser.add_argument("--file", action="append", default=[], type=Path, help="sent as it is")
    parser.add_argument("--tree", action="append", default=[], type=Path, help="a folder, packed")
    parser.add_argument("--python", default="3.12", help="of the target")
    parser.add_argument("--piece", type=int, default=60_000_000, help="bytes, at most")
    return parser.parse_args()


if __name__ == "__main__":
    main()
