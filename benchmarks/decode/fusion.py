"""Gains of fusing drafters, of pruning and of each source: the ablations of RASD and CASD.

    python -m benchmarks.decode.fusion MODEL --head HEAD --store FOLDER \\
        --suite humaneval --data FOLDER --load-options '{"rasd": {"length": 4}}' --out fusion.jsonl

*Replayed*: a fused preset answers, and the draft trees of its parts are kept at every step. The
output then shows how many tokens of each tree would have been accepted, without a budget.
*Timed*: the variants answer the same prompts in turn; the first repeat warms up. `--report FILE`
prints the tables of a file.

Variants are the network's `tree` alone, the fused presets, and of these
- `-unpruned` (RASD): all retrieved branches, also those that the network does not confirm;
- `-apart`: no fusion. A node that retrieval and network both have is computed twice (`apart.py`).
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from statistics import fmean, median
from typing import Any

import graft
from benchmarks.decode.apart import Apart
from benchmarks.options import json_object
from benchmarks.rows import rows_file
from benchmarks.settings import load_arguments
from benchmarks.suites.task import read_suite, select
from graft import SamplingParams
from graft.assemble.drafters import make_drafter
from graft.bench.result_file import read_results
from graft.bench.statistics import ratio
from graft.draft.combined import Combined, Concurrently, Prune, all_nodes
from graft.draft.drafter import Budget, DraftContext, Drafter
from graft.models.heads.installed import AUTO_HEAD, named_head
from graft.tree.draft_tree import DraftTree
from graft.tree.fuse import union

FUSED = ("casd", "casd-prompt", "rasd-pld", "rasd-rest")
UNPRUNED, APART = "-unpruned", "-apart"


@dataclass
class Recorder:
    """A pruning rule that records its input: (place, parts, fused) per step."""

    prune: Prune
    steps: list[tuple[int, list[DraftTree], DraftTree]] = field(default_factory=list)

    def __call__(
        self, contexts: list[DraftContext], proposed: list[list[DraftTree]], budget: Budget
    ) -> list[DraftTree]:
        """As the inner rule."""
        pruned = self.prune(contexts, proposed, budget)
        for context, parts, tree in zip(contexts, proposed, pruned, strict=True):
            self.steps.append((len(context.tokens), list(parts), tree))
        return pruned


def accepted(tree: DraftTree, coming: Sequence[int]) -> int:
    """How many of the tokens to come the tree has, from its root on."""
    children, node, count = tree.children, 0, 0
    for token in coming:
        if token not in children[node]:
            break
        node, count = children[node][token], count + 1
    return count


def replayed(recorder: Recorder, answer: Sequence[int]) -> dict[str, Any]:
    """Sums over the steps of a recorded answer, by part and for the fusion of all."""
    sums: Counter[str] = Counter()
    for place, parts, tree in recorder.steps:
        coming = answer[place:]
        got = [accepted(part, coming) for part in parts]
        whole = reduce(union, parts)
        fused = accepted(whole, coming)
        sums["steps"] += 1
        for number, (count, part) in enumerate(zip(got, parts, strict=True)):
            sums[f"part {number} accepted"] += count
            sums[f"part {number} nodes"] += len(part) - 1
        sums["union accepted"] += fused
        sums["union nodes"] += len(whole) - 1
        sums["kept accepted"] += accepted(tree, coming)
        sums["kept nodes"] += len(tree) - 1
        sums["apart nodes"] += sum(len(part) - 1 for part in parts)
        sums["below a part"] += fused < max(got)
    return dict(sums)


class Runs:
    """The variants around one engine."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engine = graft.load(
            options.model, draft_model=options.draft_model, head=named_head(options.head),
            dtype=options.dtype, device=options.device,
            **{"prefix_cache": 0, **load_arguments(options.load_options)},
        )  # fmt: skip
        self.names = {name: f"{name}:{options.store}" if "rest" in name else name for name in FUSED}
        if not options.store:
            del self.names["rasd-rest"]
        self.params = SamplingParams(
            max_tokens=options.max_tokens, temperature=options.temperature, seed=1
        )

    def fused(self, name: str) -> Combined:
        """A fused preset of its own, not the engine's."""
        drafters = self.engine.drafters
        return make_drafter(self.names[name], drafters.resources, drafters.store)

    def variants(self) -> dict[str, Drafter]:
        """By name; every one can be the draft of a request."""
        found: dict[str, Drafter] = {"tree": self.fused("casd").drafters[-1]}
        for name in self.names:
            found[name] = self.fused(name)
            if name.startswith("rasd"):
                found[name + UNPRUNED] = Combined(
                    self.fused(name).drafters, prune=all_nodes, schedule=Concurrently()
                )
            other = self.fused(name)
            apart = Apart(other.prune, self.engine.model.vocabulary)
            found[name + APART] = Combined(other.drafters, prune=apart, schedule=other.schedule)
        return found

    def replay(self, tokens: list[int], name: str) -> dict[str, Any]:
        """One answer of a fused preset, its parts held against it."""
        combined = self.fused(name)
        recorder = Recorder(combined.prune)
        self.engine.drafters["recorded"] = Combined(
            combined.drafters, prune=recorder, schedule=combined.schedule
        )
        result = self.engine.generate(tokens, self.params, draft="recorded")
        return replayed(recorder, result.token_ids)

    def time(self, tokens: list[int], name: str) -> dict[str, Any]:
        """One answer, as it comes."""
        result = self.engine.generate(tokens, self.params, draft=name)
        stats = result.stats
        return {
            "tokens": stats.tokens, "steps": stats.steps, "decode": stats.decode_seconds,
            "nodes": stats.num_draft_tokens, "accepted": stats.num_accepted_draft_tokens,
            "by_source": dict(stats.accepted_by_source), "output": hash(tuple(result.token_ids)),
            "lengths": Counter(1 + count for count in stats.per_step_accepted),
        }  # fmt: skip


def measure(options: argparse.Namespace) -> None:
    """Replay and time, one line per answer."""
    runs = Runs(options)
    timed = runs.variants()
    runs.engine.drafters.update(timed)
    suite = read_suite(options.suite, options.data)
    prompts = select(suite, limit=options.limit, split="report", categories=())
    with rows_file("fusion", options) as out:

        def note(part: str, name: str, prompt: int, row: dict[str, Any]) -> None:
            about = {"part": part, "suite": options.suite, "variant": name, "prompt": prompt}
            out.row({**about, **row})

        for prompt in prompts:
            tokens = runs.engine.encoder.prompt(prompt.content).tokens
            for name in runs.names:
                note("replayed", name, prompt.number, runs.replay(tokens, name))
            for turn in range(options.repeats + 1):
                for name in ("plain", *timed):
                    row = runs.time(tokens, name)
                    if turn:
                        note("timed", name, prompt.number, row)


def report(file: Path) -> None:
    """The tables of a file."""
    rows = read_results(file).rows
    for suite in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == suite]
        print(f"\n{suite}")
        _print_replayed([row for row in mine if row["part"] == "replayed"])
        _print_timed([row for row in mine if row["part"] == "timed"])
        _print_lengths([row for row in mine if row["part"] == "timed" and "lengths" in row])


def _print_replayed(rows: list[dict[str, Any]]) -> None:
    print("| preset | retrieved | model | fused | kept | nodes retrieved / model / fused / kept |")
    print("|---|--:|--:|--:|--:|---|")
    for name in dict.fromkeys(row["variant"] for row in rows):
        sums = sum((Counter(_counts(row)) for row in rows if row["variant"] == name), Counter())
        steps, parts = sums["steps"], ("part 0", "part 1", "union", "kept")
        per_step = [f"{1 + sums[part + ' accepted'] / steps:.2f}" for part in parts]
        nodes = [f"{sums[part + ' nodes'] / steps:.1f}" for part in parts]
        below = f"; below a part in {sums['below a part']} of {steps} states"
        print(f"| {name} | {' | '.join(per_step)} | {' / '.join(nodes)}{below} |")


def _counts(row: dict[str, Any]) -> dict[str, int]:
    return {key: value for key, value in row.items() if isinstance(value, int) and key != "prompt"}


def _print_timed(rows: list[dict[str, Any]]) -> None:
    paces: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["tokens"] > 1:
            pace = row["decode"] / (row["tokens"] - 1)
            paces[row["variant"]][row["prompt"]].append(pace)
    print("| variant | tokens/step | nodes | decoding against plain | same output |")
    print("|---|--:|--:|--:|--:|")
    outputs = {row["prompt"]: row["output"] for row in rows if row["variant"] == "plain"}
    for name, by_prompt in paces.items():
        mine = [row for row in rows if row["variant"] == name]
        steps = sum(row["steps"] for row in mine)
        base = [median(paces["plain"][prompt]) for prompt in by_prompt]
        found = ratio(base, [median(each) for each in by_prompt.values()])
        same = fmean(row["output"] == outputs[row["prompt"]] for row in mine)
        print(
            f"| {name} | {1 + sum(row['accepted'] for row in mine) / steps:.2f} "
            f"| {sum(row['nodes'] for row in mine) / steps:.1f} "
            f"| {found.mean:.2f} ({found.low:.2f} to {found.high:.2f}) | {same:.0%} |"
        )


def _print_lengths(rows: list[dict[str, Any]]) -> None:
    """How many steps added 1, 2, ... tokens, the target's own included (CASD's histogram)."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        for length, steps in row["lengths"].items():  # JSON's keys are strings
            counts[row["variant"]][int(length)] += steps
    longest = max((max(each) for each in counts.values()), default=0)
    if longest:
        print(
            f"| share of steps by accepted length | {' | '.join(map(str, range(1, longest + 1)))} |"
        )
        print(f"|---|{'--:|' * longest}")
    for name, each in counts.items():
        shares = [f"{each[length] / each.total():.0%}" for length in range(1, longest + 1)]
        print(f"| {name} | {' | '.join(shares)} |")


def main() -> None:
    """Measure, or report what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft-model")
    parser.add_argument("--head", default=AUTO_HEAD, help="a draft head, auto or none")
    parser.add_argument("--load-options", type=json_object, default={}, help="of graft.load")
    parser.add_argument("--store", help="for rasd-rest")
    parser.add_argument("--suite", default="humaneval")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=int, default=8, help="prompts of a category")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.report:
        report(options.report)
    else:
        measure(options)


if __name__ == "__main__":
    main()
