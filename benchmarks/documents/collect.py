"""The files of questions.json, taken from Debian packages.

    python -m benchmarks.documents.collect FOLDER

Packages are downloaded, not installed. Where Debian carries no file of a format, pandoc converts a
text (`convert` in questions.json).
"""

import argparse
import gzip
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

QUESTIONS = Path(__file__).with_name("questions.json")


def entries() -> list[dict[str, Any]]:
    """The documents and their questions, with the sentence that answers each of them."""
    return json.loads(QUESTIONS.read_text(encoding="utf-8"))


def collect(folder: Path) -> None:
    """Write the files that are not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [each for each in entries() if not (folder / each["name"]).exists()]
    with tempfile.TemporaryDirectory() as name:
        unpacked = Path(name)
        for package in dict.fromkeys(each["package"] for each in missing):
            subprocess.run(["apt-get", "download", "-qq", package], cwd=unpacked, check=True)
            [file] = unpacked.glob(f"{package}_*.deb")
            subprocess.run(["dpkg-deb", "-x", str(file), str(unpacked)], check=True)
        for each in missing:
            data = (unpacked / each["path"]).read_bytes()
            if each["path"].endswith(".gz"):
                data = gzip.decompress(data)
            _write(data, folder / each["name"], each.get("convert"), Path(each["path"]).suffix)


def _write(data: bytes, file: Path, convert: list[str] | None, suffix: str) -> None:
    if convert is None:
        file.write_bytes(data)
        return
    source = [] if suffix == ".gz" else ["-f", suffix.removeprefix(".")]
    subprocess.run(["pandoc", *source, *convert, "-o", str(file)], input=data, check=True)


def main() -> None:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    collect(parser.parse_args().folder)


if __name__ == "__main__":
    main()
