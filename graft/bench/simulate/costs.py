"""What steps cost in a simulation: a table by its name.

`recorded` is what the machine of a result file was measured at, `reference` the table of the tests,
a file any table that Graft has written, SHAPE@HARDWARE the floor of a place (`roofline.py`); with
`like`, which says where the recorded table comes from, that table carried over there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.bench.result_file import ENGINE, Results
from graft.bench.simulate.roofline import SPELLED, Place, read_place, roofline, scaled
from graft.errors import InputError
from graft.models.step_costs import REFERENCE, StepCosts

RECORDED, REFERENCE_NAME = "recorded", "reference"


@dataclass(frozen=True, slots=True)
class Priced:
    """A table, and whether drafts are held against the clock where it holds
    (`draft/pacing/paced.py`): not where `GRAFT_COSTS` names a table."""

    costs: StepCosts
    paced: bool


def find_costs(name: str, results: Results, like: Place | None = None) -> Priced:
    """The table of this name, for answers of this file."""
    if name == REFERENCE_NAME:
        return Priced(StepCosts.read(REFERENCE), paced=False)
    if name == RECORDED:
        return _recorded(results)
    if "@" in name:
        place = read_place(name)
        if like is None:
            return Priced(roofline(place), paced=True)
        return Priced(scaled(_recorded(results).costs, like, place), paced=True)
    if not Path(name).exists():
        raise InputError(
            f"unknown costs {name!r}: no such file; choose {RECORDED}, {REFERENCE_NAME}, a file or "
            f"{SPELLED}"
        )
    return Priced(StepCosts.read(Path(name)), paced=False)


def _recorded(results: Results) -> Priced:
    settings = graft_settings(results)
    if "costs" not in settings:
        raise InputError(
            "the result file has no table of step costs: it was measured by an earlier version; "
            f"name another table with --costs, such as {REFERENCE_NAME}"
        )
    return Priced(StepCosts.of(settings["costs"], "the result file's"), paced=settings["paced"])


def graft_settings(results: Results) -> dict[str, Any]:
    """The settings of Graft's engine in a result file."""
    lines = (line for line in results.records[ENGINE] if line["engine"] == "graft")
    return next((line["settings"] for line in lines), {})
