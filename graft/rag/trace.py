"""An answer as a self-contained HTML page with its rounds; `trace.html` is the template."""

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from graft.rag.answer import Answer

PARTS = ("retrieval", "prefill", "decode", "judging")


def trace_html(answer: Answer, *, model: str) -> str:
    """The HTML page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(
        files("graft.rag").joinpath("trace.html").read_text(encoding="utf-8")
    )
    seconds = {part: getattr(answer.totals, f"{part}_seconds") for part in PARTS}
    whole = sum(seconds.values()) or 1.0
    return template.render(
        answer=answer,
        model=model,
        seconds=seconds,
        shares={part: 100 * value / whole for part, value in seconds.items()},
        rounds=[(each, each.as_dict()) for each in answer.rounds],
    )
