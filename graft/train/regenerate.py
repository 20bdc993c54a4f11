"""Answers in the target's own words: what it would say is what a head must guess."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from graft.assemble import load
from graft.decode.request import Request
from graft.errors import ContextLengthError, InputError
from graft.models.load import find_device
from graft.sampling import SamplingParams
from graft.train.examples import Messages, Reader
from graft.train.settings import Settings

TOGETHER = {"cpu": 8, "cuda": 128}  # questions at a time
DRAFTS = {"cpu": "auto", "cuda": "plain"}  # many at a time leave little to gain
ROUND = 4  # times as many between two writes


def regenerate(settings: Settings, say: Callable[[str], None]) -> Path:
    """The file with the target's answers to the data's first questions; what it lacks is added."""
    path = settings.answers or settings.work / "answers.jsonl"
    done = _lines(path)
    if done >= settings.regenerate:
        return path
    kind = find_device(settings.device).type
    engine = load(
        settings.model, device=settings.device, draft=DRAFTS[kind], max_batch=TOGETHER[kind]
    )
    reader = Reader(engine.loaded.tokenizer, field=settings.field)
    questions = islice(_questions(reader, settings.data), done, settings.regenerate)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        while some := list(islice(questions, ROUND * TOGETHER[kind])):
            for messages in _answered(engine, some, settings):
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            file.flush()
            done += len(some)
            say(f"{done} questions answered")
    if not done:
        raise InputError("--regenerate found no conversations in the data")
    return path


def _answered(engine: Any, some: list[Messages], settings: Settings) -> Iterator[Messages]:  # noqa: ANN401
    """One line each, so that the file's length tells how many questions were asked: a question
    that is too long for the model has no answer."""
    for question, result in zip(some, _ask(engine, some, settings), strict=True):
        answer = [{"role": "assistant", "content": result.text}] if result else []
        yield [*question, *answer]


def _ask(engine: Any, some: list[Messages], settings: Settings) -> list[Any]:  # noqa: ANN401
    room = engine.model.context_length - settings.answer_tokens
    prompts = [engine.encoder.prompt(question).tokens for question in some]
    fits = [len(tokens) < room for tokens in prompts]
    asked = [
        Request(tokens, _params(settings, number))
        for number, (tokens, fit) in enumerate(zip(prompts, fits, strict=True))
        if fit
    ]
    try:
        results = iter(engine.generate(asked) if asked else [])
    except ContextLengthError as error:
        raise InputError(f"--answer-tokens is too much: {error}") from error
    return [next(results) if fit else None for fit in fits]


def _params(settings: Settings, number: int) -> SamplingParams:
    """With draws of its own for every question: the same ones would favour the same words."""
    return SamplingParams(
        max_tokens=settings.answer_tokens,
        temperature=settings.temperature,
        seed=settings.seed + number,
    )


def _questions(reader: Reader, paths: tuple[str, ...]) -> Iterator[Messages]:
    """Up to the first thing a user says."""
    for messages in reader.conversations(paths):
        first = next(place for place, each in enumerate(messages) if each["role"] == "user")
        yield messages[: first + 1]


def _lines(path: Path) -> int:
    """Whole lines; a torn last one, of a run that was killed, is cut off."""
    if not path.is_file():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return whole.count(b"\n")
