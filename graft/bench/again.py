"""Results measured again, by the settings that stand in their own file.

The headers of a result file say what was asked, of whom and how. So whoever has the data and the
model repeats it with one command, and sees cell by cell how far the two runs are apart: in time
against the baseline, prompt by prompt, and in tokens per step, which depend on the machine little.

`python -m graft.bench.again FILE... --data FOLDER` needs what `python -m graft.bench` needs.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from graft.bench.bare import exit_code
from graft.bench.installed import interpreters, no_python
from graft.bench.lines import Lines
from graft.bench.metrics import Ratio, decode_ratio, paired_ratio, tokens_per_step
from graft.bench.page.sections import kind_of
from graft.bench.rag.records import is_rag
from graft.bench.records import Results, read_results
from graft.bench.report import Cell, Runs, runs_by_cell, usual_baseline
from graft.bench.runner import Watch, run
from graft.bench.settings import WHOLE, Settings
from graft.bench.sizes import short
from graft.bench.systems import OPTIONS, PEERS, lacks
from graft.bench.tables import NOTHING, markdown_table, shown_number, shown_ratio
from graft.bench.workers import Idle
from graft.errors import GraftError, InputError

FOLDER = Path("results") / "again"
CLOSE = 0.03  # a mean that is no farther off counts as the same, however sure it is
NOT_OF_PROMPTS = "is of no suite of prompts; docs/results.md has the command that makes it"
# What files did not say before it could be chosen
OLDEST_FIXED = {"draft model": "none", "load options": {}, "context length": None}
OLDEST_FIXED |= {"device": "auto", "rehearsals": 0, "ignore eos": False}
OLDEST_OPTIONS = {"peers": [], "temperature": [0.0], "batch": [1], "context": [WHOLE]}
OLDEST_OPTIONS |= {"limit": None, "groups": None, "split": "report", "category": [], "repeats": 1}
HEADINGS = ["context", "batch", "temperature", "system", "prompts"]
HEADINGS += ["published", "here", "here / published", "tok/step", "here, too", "same text", ""]


@dataclass(frozen=True, slots=True)
class Compared:
    """A system in a cell, over the prompts that both runs have: decoding against the baseline's,
    published and here, and here against published; tokens per step of both; how many answers are
    the same."""

    cell: Cell
    system: str
    prompts: int
    published: Ratio | None
    here: Ratio | None
    change: Ratio | None
    steps: tuple[float | None, float | None]
    same: int

    @property
    def verdict(self) -> str:
        """Whether the two agree, as far as so many prompts can tell."""
        if self.change is None:
            return ""
        low, high = self.change.low, self.change.high
        if abs(self.change.mean - 1) <= CLOSE or (low is not None and low <= 1 <= high):
            return "same"
        return "faster" if self.change.mean > 1 else "slower"


def settings_of(
    results: Results,
    data: Path,
    *,
    limit: int | None = None,
    **changes: Any,  # noqa: ANN401
) -> list[Settings]:
    """What was asked for, in every session of a file that asked for something else; `data` is the
    suite's folder, or one that has it under its name. `limit` leaves no more prompts of each
    category, of those that were asked; `changes` are for what is called otherwise here, such as a
    model's file, and for what peers need (`interpreters`, `gguf`): those that miss something are
    left out."""
    if not results.sessions:
        raise InputError("the file holds no answers; give one written by graft bench")
    fixed = OLDEST_FIXED | results.sessions[0]["fixed"]
    own = data / fixed["suite"]
    length, draft_model = fixed["context length"], fixed["draft model"]
    always = {
        "suite": fixed["suite"],
        "data": own if own.exists() else data,
        "model": fixed["model"],
        "draft_model": None if draft_model == "none" else draft_model,
        "dtype": fixed["dtype"],
        "device": fixed["device"],
        "context_length": length if isinstance(length, int) else None,
        "rehearsals": fixed["rehearsals"],
        "ignore_eos": fixed["ignore eos"],
        "max_tokens": fixed["max_tokens"],
        "load_options": fixed["load options"],
        "quality": "likelihood" if results.likelihoods else "answers",
        **({"head": fixed["head"]} if "head" in fixed else {}),
        **{name: each for name, each in changes.items() if each is not None},
    }
    asked: list[dict[str, Any]] = []
    for session in results.sessions:
        options = OLDEST_OPTIONS | session["options"]
        if options not in asked:
            asked.append(options)
    return [
        Settings(**always, **_chosen(each, limit), **_peers(each["peers"], fixed, always))
        for each in asked
    ]


def _chosen(asked: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """What a session's options say, but for peers."""
    return {
        "drafts": tuple(asked["draft"]),
        "temperatures": tuple(asked["temperature"]),
        "batches": tuple(asked["batch"]),
        "contexts": tuple(asked["context"]),
        "limit": _at_most(asked["limit"], limit),
        "groups": asked["groups"],
        "split": asked["split"],
        "categories": tuple(asked["category"]),
        "repeats": asked["repeats"],
    }


def _peers(asked: list[str], fixed: dict[str, Any], always: dict[str, Any]) -> dict[str, Any]:
    """Those that can run, with the options they got."""
    pythons = always.get("interpreters", {})
    given = frozenset(name for name in OPTIONS if always.get(name))
    able = tuple(name for name in asked if not _lacking(name, pythons, given))
    options = {name: fixed.get(f"{name} options") for name in able}
    return {"peers": able, "peer_options": {name: each for name, each in options.items() if each}}


def _lacking(peer: str, pythons: Mapping[str, str], given: frozenset[str]) -> str | None:
    """Why a peer cannot run, by what was said."""
    if reason := no_python(PEERS[peer].engine, pythons):
        return reason
    option = lacks(peer, given)
    return option and f"it needs {option}"


def _at_most(asked: int | None, limit: int | None) -> int | None:
    """As many prompts of each category as can be chosen from those `asked` for, which lie at equal
    distances: every second, every third, ..."""
    if limit is not None and limit < 1:
        raise InputError(f"--limit is a number of prompts, not {limit}")
    if asked is None or limit is None:
        return limit if asked is None else asked
    return max(count for count in range(1, min(limit, asked) + 1) if asked % count == 0)


def compare(published: Results, here: Results) -> list[Compared]:
    """Every system of every cell that both have."""
    before, now = runs_by_cell(published), runs_by_cell(here)
    found = []
    for cell in sorted(before.keys() & now.keys()):
        both = [system for system in before[cell] if system in now[cell]]
        found += [
            _compared(cell, system, usual_baseline(both), before[cell], now[cell])
            for system in both
        ]
    return found


def _compared(
    cell: Cell, system: str, baseline: str, before: dict[str, Runs], now: dict[str, Runs]
) -> Compared:
    runs = (before[baseline], before[system], now[baseline], now[system])
    common = [numbers for numbers in before[system] if all(numbers in each for each in runs)]
    old = [(before[baseline][each], before[system][each]) for each in common]
    new = [(now[baseline][each], now[system][each]) for each in common]
    gains = [
        (ours.pace / mine.pace, theirs.pace / other.pace)
        for (theirs, other), (ours, mine) in zip(old, new, strict=True)
        if all(run.pace for run in (theirs, other, ours, mine))
    ]
    steps = tuple(tokens_per_step([run for _, run in pairs]) if pairs else None
                  for pairs in (old, new))  # fmt: skip
    return Compared(
        cell,
        system,
        len(common),
        decode_ratio(old),
        decode_ratio(new),
        paired_ratio(*zip(*gains, strict=True)) if gains and system != baseline else None,
        steps,
        sum(a[1].output == b[1].output for a, b in zip(old, new, strict=True)),
    )


def again_table(name: str, compared: list[Compared]) -> str:
    """A row for every system of every cell, as Markdown."""
    return markdown_table(name, HEADINGS, [_figures(each) for each in compared])


def _figures(each: Compared) -> list[str]:
    context, batch, temperature = each.cell
    figures = [short(context) if context else NOTHING, str(batch), f"{temperature:g}", each.system]
    figures += [str(each.prompts), *map(shown_ratio, (each.published, each.here, each.change))]
    figures += [shown_number(steps, 2) for steps in each.steps]
    return [*figures, f"{each.same}/{each.prompts}", each.verdict]


def notes(published: Results, here: Results) -> Iterator[str]:
    """What else is not as it was."""
    before, now = published.sessions[0]["fixed"], here.sessions[-1]["fixed"]
    for name, what in (("data", "questions"), ("weights", "weights"), ("gpus", "GPUs"),
                       ("cpu", "CPU"), ("torch", "torch"), ("graft", "graft")):  # fmt: skip
        if before.get(name) != now.get(name):
            yield f"{what}: {before.get(name)} published, {now.get(name)} here"
    if both := published.likelihoods.keys() & here.likelihoods.keys():
        first, second = (
            fmean(results.likelihoods[each].per_token for each in both)
            for results in (published, here)
        )
        yield (
            f"gold's log-likelihood per token, {len(both)} readings: "
            f"{first:.4f} published, {second:.4f} here"
        )


@dataclass(frozen=True, slots=True)
class Again:
    """A published file and what is measured again into the file `out`: for each of its sessions
    that asked for something else."""

    name: str
    out: Path
    published: Results
    asked: list[Settings]

    @classmethod
    def of(cls, file: Path, data: Path, folder: Path, **changes: Any) -> "Again":  # noqa: ANN401
        """See `settings_of`; the new file gets the same name in another folder."""
        other = kind_of(file) != "header" and file.stat().st_size > 0
        if other or is_rag(file):
            raise InputError(f"{file} {NOT_OF_PROMPTS}")
        out, published = folder / file.name, read_results(file)
        if out.resolve() == file.resolve():
            raise InputError(f"{file} would be measured into itself; choose another --out")
        return cls(file.name, out, published, settings_of(published, data, **changes))

    def measure(self, out: Path, watch: Watch, idle: Idle | None = None) -> bool:
        """Whether everything could be. Stopped, it goes on where it was."""
        here = self.asked[0]
        asked = {name for each in self.published.sessions for name in each["options"]["peers"]}
        for name in sorted(asked):
            if reason := _lacking(name, here.interpreters, here.given):
                watch.say(f"{name} is left out: {reason}")
        out.parent.mkdir(parents=True, exist_ok=True)
        return all([run(each, out, watch, idle) for each in self.asked])

    def table(self) -> str:
        """What was measured beside what was published, and what else is not as it was."""
        here = read_results(self.out)
        compared = compare(self.published, here)
        if not compared:
            return f"{self.name}: nothing of it could be measured here\n"
        told = [f"- {note}" for note in notes(self.published, here)]
        return "\n".join([again_table(self.name, compared), "", *told, ""])


def every_file(
    files: Sequence[Path], measure: Callable[[Path, Idle], bool], say: Callable[[str], None]
) -> bool:
    """Whether all of all files could be measured; one that cannot be is a line, and the others go
    on, with the model that the one before has loaded if it is the same."""
    complete = True
    with Idle() as idle:
        for file in files:
            try:
                complete = measure(file, idle) and complete
            except GraftError as error:
                if len(files) == 1:
                    raise
                say(f"{file.name} is left out: {error}")
                complete = False
    return complete


def main() -> int:
    """Measure, print the tables as Markdown; the exit code."""
    options = argparse.ArgumentParser(prog="python -m graft.bench.again", description=__doc__)
    options.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options.add_argument("--data", type=Path, required=True, help="a folder with the suites")
    options.add_argument("--out", type=Path, default=FOLDER, help="the new files' folder")
    options.add_argument("--limit", type=int, help="prompts of each category, at most")
    options.add_argument("--peer-python", action="append", default=[], metavar="ENGINE=PATH",
                         help="python with hf, vllm or llama; repeat it")  # fmt: skip
    options.add_argument("--gguf", type=Path, help="the model's weights, for llama")
    for name in ("model", "draft_model", "dtype", "device"):
        options.add_argument(f"--{name.replace('_', '-')}", help="another than published")
    chosen = vars(options.parse_args())
    files, data, folder = (chosen.pop(name) for name in ("files", "data", "out"))
    words = chosen.pop("peer_python")

    def once_more(file: Path, idle: Idle) -> bool:
        again = Again.of(file, data, folder, **chosen)
        complete = again.measure(again.out, Lines(), idle)
        sys.stdout.write(f"{again.table()}\n")
        sys.stdout.flush()
        return complete

    def measured() -> bool:
        chosen["interpreters"] = interpreters(words)
        return every_file(files, once_more, Lines().say)

    return exit_code(measured, lambda: folder)


if __name__ == "__main__":
    sys.exit(main())
