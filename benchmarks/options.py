"""A command-line parser made from the fields of a settings class."""

import argparse
import json
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from graft.bench.sizes import size
from graft.errors import InputError

Kind = TypeVar("Kind")


def parse(kind: type[Kind], arguments: Sequence[str], prog: str) -> Kind:
    """Settings from the command line; lists are separated by commas, 4k is 4096."""
    parser = argparse.ArgumentParser(prog=prog, description=kind.__doc__)
    hints = get_type_hints(kind)
    for each in fields(kind):
        name = f"--{each.name.replace('_', '-')}"
        text = each.metadata.get("help")
        if hints[each.name] is bool:
            parser.add_argument(name, action="store_true", default=None, help=text)
        else:
            required = each.default is MISSING and each.default_factory is MISSING
            parser.add_argument(name, required=required, help=text)
    found = vars(parser.parse_args(arguments))
    given = {
        name: value if value is True else _parsed(name, hints[name], value)
        for name, value in found.items()
        if value is not None
    }
    return kind(**given)


def _parsed(name: str, hint: Any, text: str) -> Any:  # noqa: ANN401
    if get_origin(hint) in (types.UnionType,):
        hint = next(each for each in get_args(hint) if each is not type(None))
    origin = get_origin(hint) or hint
    try:
        if origin is tuple:
            parts = (part.strip() for part in text.split(","))
            return tuple(dict.fromkeys(_scalar(get_args(hint)[0])(p) for p in parts if p))
        if origin is dict:
            return json_object(text)
        return _scalar(hint)(text)
    except (ValueError, TypeError):
        what = {"tuple": "a list such as 1,4k", "dict": "a JSON object"}.get(origin.__name__)
        option = name.replace("_", "-")
        raise InputError(f"--{option} takes {what or origin.__name__}, not {text!r}") from None


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; ValueError or TypeError for anything else."""
    return dict(json.loads(text))


def _scalar(hint: type) -> Callable[[str], Any]:
    return size if hint is int else hint
