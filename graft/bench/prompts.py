"""The user's own prompts: records of JSON lines, text files, or the shape of Spec-Bench.

A record has `prompt` (text) or `messages` (a chat), and may have `documents` (texts that come
before the prompt), `id` (a whole number) and `category`. Spec-Bench's records have `turns` instead,
of which the first is taken. Any other file is one prompt, its category the name of its folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.bench.measure import PromptTokens
from graft.decode.engine import Engine
from graft.documents import Document, document_messages
from graft.documents.records import Record, read_records
from graft.errors import InputError

SHAPE = (
    '{"prompt": TEXT} or {"messages": [{"role": ..., "content": ...}]}, perhaps with "documents"'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages with an id that is unique in a run."""

    id: int
    messages: list[dict[str, str]]
    category: str = ""


def read_prompts(paths: Sequence[Path], limit: int | None = None) -> list[Prompt]:
    """The prompts of all files; of more than `limit`, so many at equal distances."""
    found = [_prompt(record, number) for number, record in enumerate(read_records(paths), 1)]
    if len({prompt.id for prompt in found}) < len(found):
        found = [Prompt(n, each.messages, each.category) for n, each in enumerate(found, 1)]
    if not found:
        raise InputError("the files have no prompts")
    if limit is None or limit >= len(found):
        return found
    return [found[place * len(found) // limit] for place in range(limit)]


def _prompt(record: Record, number: int) -> Prompt:
    if record.document:
        folder = Path(record.where).parent.name
        return Prompt(number, document_messages(record.content.strip(), []), folder)
    try:
        return _of_row(record.content, number)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{record.where} is not {SHAPE}") from None


def _of_row(row: dict[str, Any], number: int) -> Prompt:
    prompt_id = int(row.get("id", row.get("question_id", number)))
    documents = row.get("documents") or []
    documents = [documents] if isinstance(documents, str) else documents
    read = [Document(f"{place}", str(text)) for place, text in enumerate(documents, 1)]
    if "messages" in row:
        *before, last = [{**each, "content": str(each["content"])} for each in row["messages"]]
        messages = [*before, {**last, **document_messages(last["content"], read)[0]}]
    else:
        question = row["prompt"] if "prompt" in row else row["turns"][0]
        if not isinstance(question, str) or not question.strip():
            raise ValueError(question)
        messages = document_messages(question, read)
    return Prompt(prompt_id, messages, str(row.get("category", "")))


def encode(
    engine: Engine, prompts: Sequence[Prompt], max_tokens: int
) -> tuple[list[PromptTokens], list[str]]:
    """Token ids through the chat template, and a note where prompts are too long for the model."""
    encoded = [
        PromptTokens(each.id, engine.encoder.prompt(each.messages).tokens, each.category)
        for each in prompts
    ]
    longest = engine.context_length - max_tokens
    fitting = [each for each in encoded if len(each.token_ids) <= longest]
    if not fitting:
        raise InputError(
            f"no prompt fits the model's {engine.context_length:,} tokens; lower --max-tokens or "
            "raise --context-length"
        )
    dropped = len(encoded) - len(fitting)
    note = f"{dropped} of {len(encoded)} prompts are too long for the model and left out"
    return fitting, [note] if dropped else []
