"""RAPID's table for one target and one drafter: long contexts, batches, systems, speed and quality.

    python benchmarks/long_context.py --model qwen2.5-coder-1.5b --suite qmsum --data QMSUM \\
        --context 8k,16k,32k --batch 1,4,16 --limit 16 --groups 4 --out self.jsonl
    python benchmarks/long_context.py --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b \\
        ... --out smaller.jsonl
    python benchmarks/long_context.py --model qwen2.5-coder-0.5b --draft-model qwen2.5-coder-1.5b \\
        ... --draft plain,rapid-up,rapid-up+copy,rapid-up@rapid:40 --out upward.jsonl
    python benchmarks/long_context.py --from self.jsonl smaller.jsonl upward.jsonl

It is `python -m graft.bench` with systems chosen for this question, and takes all of its options:
measurements are paired and interleaved with plain decoding's, and a stopped run goes on.
Presets that this version does not know, or that need a draft model, are left out with a line.
`--draft` names others, such as `plain,rapid@rapid:10,rapid+copy`.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

from graft.bench.asked import Asked
from graft.bench.interrupts import sigterm_interrupts
from graft.bench.lines import Lines
from graft.bench.long_table import long_table
from graft.bench.records import read_results
from graft.bench.report import report
from graft.bench.runner import run
from graft.errors import GraftError

SELF = ("plain", "rag", "magicdec", "triforce", "rapid", "copy", "magicdec+copy", "rapid+copy")
SELF += ("rapid@rapid:10", "rapid@rapid-phat:10")
DRAFTED = ("plain", "sd", "rapid", "sd+copy", "rapid+copy", "rapid@rapid:10")  # by another model
USUAL = {
    "suite": "qmsum", "context": "8k,16k,32k", "batch": "1,4,16", "limit": 16, "groups": 4,
    "quality": "likelihood", "head": "none",
}  # fmt: skip
INTERRUPTED = 130


def main() -> int:
    """Measure and print the table; the exit code."""
    chosen = vars(_options().parse_args())
    out, sources = chosen.pop("out"), chosen.pop("sources")
    complete = True
    try:
        if not sources:
            chosen = {**USUAL, **{name: each for name, each in chosen.items() if each is not None}}
            chosen["draft"] = chosen.get("draft") or ",".join(_possible(chosen))
            with sigterm_interrupts():
                complete = run(Asked(**chosen).settings(), out, Lines())
            sources = [out]
        print(long_table([report(read_results(source)) for source in sources]))
    except GraftError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped; the same command goes on ({out})\n")
        return INTERRUPTED
    return 0 if complete else 1


def _possible(chosen: dict[str, object]) -> list[str]:
    """Those of the usual systems that can be measured as asked."""
    found = []
    for name in DRAFTED if chosen.get("draft_model") else SELF:
        try:
            Asked(**{**chosen, "draft": name}).settings()
        except GraftError as error:
            sys.stderr.write(f"{name} is left out: {error}\n")
        else:
            found.append(name)
    return found


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for each in fields(Asked):
        kind = get_args(each.type)[0]
        usual = f"{USUAL[each.name]} if not given" if each.name in USUAL else None
        options.add_argument(f"--{each.name.replace('_', '-')}", type=kind, help=usual)
    options.add_argument("--out", type=Path, default=Path("results/long_context.jsonl"))
    options.add_argument("--from", type=Path, nargs="+", dest="sources", help="print, do not run")
    return options


if __name__ == "__main__":
    sys.exit(main())
