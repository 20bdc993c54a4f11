"""Write docs/results.md from the files of results/: python -m benchmarks.published [--out FILE]."""

import argparse
from pathlib import Path

from benchmarks.published.contents import page

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def main() -> None:
    """Read the option and write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=PAGE)
    options.parse_args().out.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
