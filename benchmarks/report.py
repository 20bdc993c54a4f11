"""Turn the driver's JSON lines into Markdown tables.

Systems may stop at different lengths (rounding changes a token, then the text), so times are
compared at equal lengths: the time a system would take for the N tokens that the baseline made is
its prefill plus (N - 1) times its own seconds per token. A ratio above 1 means faster than the
baseline. "sum" is the ratio of times summed over prompts, "mean" the geometric mean of the
per-prompt ratios, with the 95 % interval of a bootstrap over prompts. Of several repeats the
median counts.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

RESAMPLES = 4000


class Run(NamedTuple):
    """One system on one prompt; times in seconds, medians over the repeats."""

    category: str
    prefill: float
    per_token: float  # of decoding: without the first token and its time
    tokens: int
    token_ids: list[int]

    def time_for(self, tokens: int, *, with_prefill: bool) -> float:
        """Time for so many tokens at this run's pace."""
        return self.prefill * with_prefill + (tokens - 1) * self.per_token


Runs = dict[int, Run]  # by question


def read(file: Path) -> dict[str, Runs]:
    """Runs by system; answers of a single token have no decoding to time and are left out."""
    groups: dict[tuple[str, int], list[dict]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["tokens"] > 1:
            groups[row["system"], row["question_id"]].append(row)
    systems: dict[str, Runs] = defaultdict(dict)
    for (system, question), rows in groups.items():
        systems[system][question] = as_run(rows)
    return systems


def as_run(rows: list[dict]) -> Run:
    """The repeats of one prompt as one run."""
    pace = [(row["total_seconds"] - row["prefill_seconds"]) / (row["tokens"] - 1) for row in rows]
    return Run(
        category=rows[0]["category"],
        prefill=median(row["prefill_seconds"] for row in rows),
        per_token=median(pace),
        tokens=rows[0]["tokens"],
        token_ids=rows[0]["token_ids"],
    )


def speeds(runs: list[Run]) -> tuple[float, float, float]:
    """Tokens per second of decoding and of everything; the median time to the first token."""
    decode = sum(run.tokens - 1 for run in runs) / sum(r.per_token * (r.tokens - 1) for r in runs)
    total = sum(run.time_for(run.tokens, with_prefill=True) for run in runs)
    return decode, sum(run.tokens for run in runs) / total, median(run.prefill for run in runs)


def ratios(runs: list[Run], base: list[Run], *, with_prefill: bool) -> str:
    """Sum ratio, geometric mean and its interval, as a table cell."""
    pairs = [(b, run, b.tokens) for b, run in zip(base, runs, strict=True)]
    base_times = np.array([b.time_for(n, with_prefill=with_prefill) for b, _, n in pairs])
    run_times = np.array([run.time_for(n, with_prefill=with_prefill) for _, run, n in pairs])
    logs = np.log(base_times / run_times)
    low, high = interval(logs)
    total = base_times.sum() / run_times.sum()
    return f"{total:.2f} | {np.exp(logs.mean()):.2f} ({low:.2f} to {high:.2f})"


def interval(logs: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the geometric mean, prompts resampled, always the same seed."""
    picks = np.random.default_rng(0).integers(len(logs), size=(RESAMPLES, len(logs)))
    low, high = np.exp(np.percentile(logs[picks].mean(axis=1), [2.5, 97.5]))
    return float(low), float(high)


def first_difference(a: list[int], b: list[int]) -> int | None:
    """Where two outputs part; None if they are the same."""
    if a == b:
        return None
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def agreement(runs: list[Run], base: list[Run]) -> str:
    """How many outputs equal the baseline's, and where the others part from it."""
    places = [first_difference(a.token_ids, b.token_ids) for a, b in zip(runs, base, strict=True)]
    parted = [place for place in places if place is not None]
    where = f", others part at token {median(parted):.0f}" if parted else ""
    return f"{len(places) - len(parted)} of {len(places)}{where}"


HEADER = """| system | prompts | decode tok/s | all tok/s | first token s \
| decode: sum | mean (95 %) | all: sum | mean (95 %) | same output |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"""


def table(title: str, systems: dict[str, Runs], baseline: str, category: str | None) -> str:
    """One category (or all), a line per system, over the prompts it shares with the baseline."""
    lines = [f"### {title}", "", HEADER]
    for system, runs in systems.items():
        base = systems[baseline]
        shared = [q for q in runs if q in base and category in (None, runs[q].category)]
        if not shared:
            continue
        ours, theirs = [runs[q] for q in shared], [base[q] for q in shared]
        decode, overall, first = speeds(ours)
        cells = [system, str(len(shared)), f"{decode:.1f}", f"{overall:.1f}", f"{first:.2f}"]
        cells += [ratios(ours, theirs, with_prefill=False), ratios(ours, theirs, with_prefill=True)]
        lines.append(f"| {' | '.join([*cells, agreement(ours, theirs)])} |")
    return "\n".join(lines) + "\n"


def about(file: Path) -> str:
    """Settings and versions of each system, from its last line."""
    last = {row["system"]: row for row in map(json.loads, file.read_text().splitlines())}
    some = next(iter(last.values()))
    lines = [f"Model {some['model']}, {some['dtype']}, at most {some['max_tokens']} tokens."]
    lines += [f"Machine: {json.dumps(some['hardware'])}, {some['date'][:10]}.", ""]
    lines += [f"- {system}: {json.dumps(row['about'])}" for system, row in last.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="the driver's --out")
    parser.add_argument("--baseline", default="graft:plain")
    chosen = parser.parse_args()
    systems = read(chosen.file)
    if chosen.baseline not in systems:
        raise SystemExit(f"no {chosen.baseline} in {chosen.file}; there is {', '.join(systems)}")
    print(about(chosen.file))
    print(f"Ratios are against {chosen.baseline}.\n")
    categories = dict.fromkeys(run.category for run in systems[chosen.baseline].values())
    for category in categories:
        print(table(category, systems, chosen.baseline, category))
    print(table("all categories", systems, chosen.baseline, None))


if __name__ == "__main__":
    main()
