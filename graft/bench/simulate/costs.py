"""Cost tables of a simulation, by name.

`recorded` was measured on the machine of the result file, `reference` is the table of the tests, a
file is any table that Graft has written, and SHAPE@HARDWARE a lower bound (`roofline.py`); with
`like`, the place of the recorded table, that table is scaled to SHAPE@HARDWARE.
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
    """A table, and whether drafting is paced by the clock: not where `GRAFT_COSTS` names a
    table."""

    costs: StepCosts
    paced: bool


def find_costs(name: str, results: Results, like: Place | None = None) -> Priced:
    """The table of this name, for a result file."""
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
            "the result file has no table of step costs; choose another with --costs, such as "
            f"{REFERENCE_NAME}"
        )
    return Priced(StepCosts.of(settings["costs"], "the result file's"), paced=settings["paced"])


def graft_settings(results: Results) -> dict[str, Any]:
    """The settings of Graft's engine in a result file."""
    lines = (line for line in results.records[ENGINE] if line["engine"] == "graft")
    return next((line["settings"] for line in lines), {})
