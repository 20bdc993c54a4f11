"""Write docs/api.md from the docstrings of the public names: python docs/make_api.py"""

import dataclasses
import inspect
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin, get_overloads

import graft

PAGE = Path(__file__).with_name("api.md")
HEAD = """# Python API

Everything here is imported from `graft`. `make api` writes this page from the docstrings.
"""
SECTIONS = {
    "Load and generate": ("load", "Engine", "SamplingParams", "Request", "Prompt", "Message"),
    "Results": ("Result", "Stream", "AsyncStream", "TokenEvent", "Origin", "Stats", "Promise"),
    "Documents": (
        "read_documents",
        "read_document",
        "Document",
        "document_prompt",
        "DocumentPrompt",
        "Excerpt",
        "document_messages",
    ),
    "Other": ("generate", "Rasd", "Casd", "PoolOptions", "Shift"),
    "Errors": (
        "GraftError",
        "InputError",
        "ContextLengthError",
        "CheckpointError",
        "UnsupportedModelError",
        "MissingDependencyError",
    ),
}
ALIASES = {
    "Prompt": "Text, a list of token ids, or a list of chat messages.",
    "Message": 'A chat message: `{"role": ..., "content": ...}` and other fields of the model\'s '
    "chat template.",
}
INTERNAL = {
    "Engine": {"submit", "exclusive"},
    "SamplingParams": {"penalised"},
    "Shift": {"paper_rule", "phat_rule"},
    "Stats": {"count_step", "together"},
    "Stream": {"ready", "step", "take_next"},
}
SHORT_TYPES = {
    "str | Sequence[int] | Sequence[dict[str, Any]] | EncodedPrompt": "Prompt",
    " | PreparedRequest": "",
}
MODULE = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")  # graft.decode.output.Result -> Result


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(graft, name)) for name in names]
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, thing: Any) -> str:  # noqa: ANN401
    if name in ALIASES:
        return f"### {name}\n\n{ALIASES[name]}\n"
    lines = [f"### {name}\n"]
    if inspect.isfunction(thing):
        lines.append(_code(_signatures(name, thing)))
    elif dataclasses.is_dataclass(thing):
        lines.append(_code([_wrapped(name, _fields(thing), "")]))
    lines.append(_text(thing))
    if inspect.isclass(thing) and issubclass(thing, Enum):
        lines.append("Values: " + ", ".join(f"`{each.name}`" for each in thing) + ".\n")
    if inspect.isclass(thing) and not issubclass(thing, Exception | Enum):
        lines += _members(name, thing)
    return "\n".join(lines)


def _members(name: str, owner: type) -> list[str]:
    """Public methods and properties in the order of the source."""
    found = []
    for member, value in vars(owner).items():
        if member.startswith("_") or member in INTERNAL.get(name, ()):
            continue
        if isinstance(value, property):
            kind = _type(inspect.signature(value.fget).return_annotation)
            found.append(f"**`{member}: {kind}`** {_text(value)}")
        elif isinstance(value, classmethod) or inspect.isroutine(value):
            method = getattr(owner, member)
            found += [_code(_signatures(member, method)), _text(method)]
    return found


def _signatures(name: str, function: Any) -> list[str]:  # noqa: ANN401
    return [_signature(name, each) for each in get_overloads(function) or [function]]


def _signature(name: str, function: Any) -> str:  # noqa: ANN401
    signature, shown = inspect.signature(function), []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if get_origin(parameter.annotation) is Unpack:  # Engine's options are a Request's fields
            options = get_args(parameter.annotation)[0].__annotations__
            shown += [
                "*",
                *(each for each in _fields(graft.Request) if each.split(":")[0] in options),
            ]
        else:
            shown.append(_parameter(parameter))
    return _wrapped(name, shown, f" -> {_type(signature.return_annotation)}")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {_type(parameter.annotation)}{default}"


def _fields(owner: type) -> list[str]:
    """The fields of a dataclass as parameters of its constructor."""
    shown = []
    for field in dataclasses.fields(owner):
        default = ""
        if isinstance(field.default, Enum):
            default = f" = {type(field.default).__name__}.{field.default.name}"
        elif field.default is not dataclasses.MISSING:
            default = f" = {field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            default = f" = {field.default_factory.__name__}()"
        shown.append(f"{field.name}: {_type(field.type)}{default}")
    return shown


def _wrapped(name: str, parts: list[str], end: str) -> str:
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _type(annotation: Any) -> str:  # noqa: ANN401
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = MODULE.sub("", text)
    for long, short in SHORT_TYPES.items():
        text = text.replace(long, short)
    return text


def _code(lines: list[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _text(thing: Any) -> str:  # noqa: ANN401
    """The docstring; its indented lines are examples."""
    paragraphs = inspect.getdoc(thing).split("\n\n")
    return "\n\n".join(_paragraph(each) for each in paragraphs) + "\n"


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```python\n{textwrap.dedent(text)}\n```"
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
