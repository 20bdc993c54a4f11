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
`--rehearsals 1` shows decoding alone: what the target and the drafters read of the prompts, and
what is retrieved, is there from the answer before.
`--draft` names others, such as `plain,rapid@rapid:10,rapid+copy`.
"""

import argparse
import sys
from pathlib import Path

from graft.bench.asked import Asked
from graft.bench.bare import add_fields, exit_code
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


def main() -> int:
    """Measure and print the table; the exit code."""
    chosen = vars(_options().parse_args())
    out, sources = chosen.pop("out"), chosen.pop("sources")

    def measured() -> bool:
        complete, files = True, sources
        if not files:
            asked = {**USUAL, **{name: each for name, each in chosen.items() if each is not None}}
            asked["draft"] = asked.get("draft") or ",".join(_possible(asked))
            complete, files = run(Asked(**asked).settings(), out, Lines()), [out]
        print(long_table([report(read_results(file)) for file in files]))
        return complete

    return exit_code(measured, lambda: out)


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
    add_fields(options, Asked, {name: f"{value} if not given" for name, value in USUAL.items()})
    options.add_argument("--out", type=Path, default=Path("results/long_context.jsonl"))
    options.add_argument("--from", type=Path, nargs="+", dest="sources", help="print, do not run")
    return options


if __name__ == "__main__":
    sys.exit(main())
