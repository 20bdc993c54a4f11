"""Tool calls and JSON schema answers with drafting against plain decoding, streamed or not.

    python -m benchmarks.serve.calls --out calls.jsonl

320 calls of a server with a pool: 40 questions, four forms, greedy and seeded.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import rows_file
from benchmarks.serve.server import started

Body = dict[str, Any]
CITIES = ("Oslo", "Lima", "Bern", "Quito", "Rome", "Cairo", "Hanoi", "Tunis", "Riga", "Accra")
QUESTIONS = (
    "What is the weather in {}?",
    "Book a table for two in {} tonight.",
    "Is it raining in {}, and how warm is it there?",
    "Find me a hotel in {} for three nights.",
)


def tool(name: str, **properties: Any) -> dict[str, Any]:  # noqa: ANN401
    """A tool whose arguments have these schemas."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SHORT = {"type": "string", "maxLength": 12}
TOOLS = [
    tool("weather", city=SHORT, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("book_table", city=SHORT, guests={"type": "integer", "minimum": 1, "maximum": 20}),
]
SCHEMA = TOOLS[0]["function"]["parameters"] | {"additionalProperties": False}
FORMS = {
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "named": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "book_table"}},
    },
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    },
    "free": {"tools": TOOLS},
}
SAMPLING = ({"temperature": 0}, {"temperature": 0.8, "seed": 3})


def cases() -> Iterator[Body]:
    """Every question with every form, greedy and seeded: 320."""
    for city, question, form, sampling in product(CITIES, QUESTIONS, FORMS, SAMPLING):
        messages = [{"role": "user", "content": question.format(city)}]
        yield {"messages": messages, "max_tokens": 48, **FORMS[form], **sampling}


def answer(
    client: httpx.Client,
    body: Body,
    *,
    stream: bool,
    **more: Any,  # noqa: ANN401
) -> tuple[tuple[str, list, str | None], dict[str, int]]:
    """What a client gets of a call, and the accepted draft tokens by source."""
    body = {**body, **more, "stream": stream}
    if not stream:
        whole = client.post("/v1/chat/completions", json=body).json()
        [choice] = whole["choices"]
        message = choice["message"]
        calls = [each["function"] for each in message.get("tool_calls") or []]
        got = message.get("content") or "", calls, choice["finish_reason"]
        return got, whole["metrics"]["accepted_by_source"]
    text, calls, reason, accepted = "", [], None, {}
    with client.stream("POST", "/v1/chat/completions", json=body) as lines:
        for line in lines.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            accepted = chunk.get("metrics", {}).get("accepted_by_source", accepted)
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                calls += [each["function"] for each in choice["delta"].get("tool_calls") or []]
                reason = choice["finish_reason"] or reason
    return (text, calls, reason), accepted


def compare(client: httpx.Client, bodies: Iterable[Body]) -> Iterator[dict[str, Any]]:
    """A row for every call: plain decoding's answer against two drafted ones, one of them streamed;
    the second has a pool with the first."""
    for number, body in enumerate(bodies):
        plain, _ = answer(client, body, stream=False, speculative={"enabled": False})
        for stream in (number % 2 == 0, number % 2 == 1):
            drafted, accepted = answer(client, body, stream=stream)
            yield {
                "call": number,
                "form": next(name for name, form in FORMS.items() if form.items() <= body.items()),
                "temperature": body["temperature"],
                "stream": stream,
                "differs": drafted != plain,
                "accepted": accepted,
            }


def main() -> None:
    """Start a server with a pool, compare, keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--limit", type=int, default=320)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arguments = [options.model, "--dtype", options.dtype, "--max-batch", "1", "--pool", "memory"]
    with started(arguments) as served, rows_file("calls", options) as file:
        with httpx.Client(base_url=served.url, timeout=600) as client:
            rows = compare(client, islice(cases(), options.limit))
            counts: Counter[str] = Counter()
            for row in rows:
                file.row(row)
                counts.update(answers=1, differ=row["differs"], **row["accepted"])
    print(dict(counts))


if __name__ == "__main__":
    main()
