"""What all kinds of measurements share; a kind adds fields in a subclass.

Every field is an option of the command line (`options.py`) and is written to the header of the
result file, so that a figure can be measured again.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from graft import Casd, PoolOptions, Rasd, Shift
from graft.assemble.loading import load
from graft.errors import InputError
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.heads.installed import AUTO_HEAD
from graft.models.load import DTYPES

SPLITS = ("report", "tune", "all")
# Options of graft.load that other fields set
SET_OTHERWISE = {
    "model", "draft_model", "head", "dtype", "device", "context_length", "draft", "verifier",
    "warm",
}  # fmt: skip
# Options of graft.load that are an object in JSON
OBJECTS = {"rasd": Rasd, "casd": Casd, "shift": Shift, "pool": PoolOptions}


def option(default: Any, text: str) -> Any:  # noqa: ANN401
    """A field with a help text."""
    if callable(default):
        return field(default_factory=default, metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run."""

    kind: ClassVar[str] = ""
    at_least_one: ClassVar[tuple[str, ...]] = ("limit", "max_tokens", "repeats", "threads")

    out: Path | None = option(None, "JSON lines; run again to resume")
    data: Path | None = option(None, "folder or file of the questions")
    model: str = option(DEFAULT_MODEL, "known name, hub id, folder or GGUF file")
    draft_model: str | None = option(None, "a smaller model with the same tokenizer")
    head: str = option(AUTO_HEAD, "folder of a draft head, auto or none")
    dtype: str = option("auto", "fp32, bf16, fp16, int8 or auto")
    device: str = option("auto", "cpu, cuda or auto")
    context_length: int | None = option(None, "of the models, such as 32k")
    load_options: dict[str, Any] = option(
        dict, 'more of graft.load, such as {"gamma": 4, "rasd": {"length": 2}}'
    )
    threads: int | None = option(None, "all cores by default")
    limit: int | None = option(None, "prompts per category, evenly spread")
    split: str = option("report", "report (odd ids), tune (even ids) or all")
    categories: tuple[str, ...] = option((), "only these")
    max_tokens: int | None = option(None, "max. tokens of an output; by default the suite's")
    repeats: int = option(1, "measurements of everything")

    def __post_init__(self) -> None:
        for name in self.at_least_one:
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if self.split not in SPLITS:
            raise InputError(f"unknown split {self.split!r}; choose from {', '.join(SPLITS)}")
        load_arguments(self.load_options)

    def as_json(self) -> dict[str, Any]:
        """For the header of a result file: everything that differs from the defaults."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        known = {name: value for name, value in found.items() if value not in (None, (), {}, "")}
        return json.loads(json.dumps(known, default=_text))


def load_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of graft.load that --load-options gives; InputError for wrong ones."""
    for name in options:
        if name in SET_OTHERWISE or name not in inspect.signature(load).parameters:
            raise InputError(f"--load-options has {name!r}, which graft.load does not take here")
    return {name: argument(name, value) for name, value in options.items()}


def argument(name: str, value: Any) -> Any:  # noqa: ANN401
    """What graft.load or a request takes for a value of JSON; InputError for wrong fields."""
    if name not in OBJECTS or (name == "pool" and not isinstance(value, dict)):
        return value  # a pool may also be true or a folder
    try:
        return OBJECTS[name](**value)
    except TypeError:  # no object, an unknown key, or a text where a number belongs
        known = ", ".join(each.name for each in fields(OBJECTS[name]))
        raise InputError(f"{name!r} takes an object of {known}, not {json.dumps(value)}") from None


def _text(value: Any) -> str:  # noqa: ANN401
    return value.name if isinstance(value, Path) else str(value)
