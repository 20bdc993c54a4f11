"""Chat templates in Jinja, rendered as transformers' `apply_chat_template` renders them.

Follows transformers' `utils/chat_template_utils.py`: a sandbox in which templates see plain data
only, because templates are downloaded code.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one field of a message


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the model's own text for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own protocol)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The body's nodes."""
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body)]


class _Dict:
    """The `dict` of templates: no class whose attributes lead elsewhere."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:  # noqa: ANN401
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:  # noqa: ANN401
        """See dict."""
        return dict.fromkeys(*given)


class _Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore."""

    def __init__(*given: Any, **named: Any) -> None:  # noqa: ANN401, N805 (jinja2's signature)
        self, *rest = given
        attributes = dict(*rest, **named)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:  # noqa: ANN401
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"Chat templates cannot store underscore-prefixed attributes on a namespace: {name!r}"
        )


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005 (the user's own time)


def _to_json(
    value: Any,  # noqa: ANN401
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates may pass it by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """jinja2's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(8)
def _compiled(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment.from_string(template)


def render_chat(template: str, messages: list[dict[str, Any]], **options: Any) -> str:  # noqa: ANN401
    """The text of a chat; `options` are the template's own, such as tools."""
    chat = [_with_reasoning(message) for message in _plain(messages)]
    given = {"tools": None, "documents": None, "add_generation_prompt": False} | options
    return _compiled(template).render(messages=chat, **_plain(given))


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose reasoning has every name that templates use for it."""
    named = (message[key] for key in REASONING if message.get(key) is not None)
    reasoning = next(named, None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:  # noqa: ANN401
    """JSON's own types all the way down: objects have methods that a sandbox does not know."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    return f"<{type(value).__name__}>"
