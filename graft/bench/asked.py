"""The options of `graft bench` as they are typed, and what they mean."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.bench.settings import Settings
from graft.bench.sizes import size
from graft.bench.suites import longest_answer
from graft.errors import InputError
from graft.models.rope import check_context_length


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOfModels:
    """What every suite takes that asks a model questions."""

    data: Path | None = None
    model: str | None = None
    draft_model: str | None = None
    head: str | None = None
    dtype: str | None = None
    device: str | None = None
    context_length: str | None = None
    limit: int | None = None
    split: str | None = None
    category: str | None = None
    max_tokens: int | None = None
    repeats: int | None = None
    load_options: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(AskedOfModels):
    """Lists are separated by commas; what is left out (None) is `Settings`' default."""

    suite: str | None = None
    draft: str | None = None
    peers: str | None = None
    temperature: str | None = None
    batch: str | None = None
    context: str | None = None
    groups: int | None = None
    rehearsals: int | None = None
    ignore_eos: bool | None = None
    quality: str | None = None
    python_hf: str | None = None
    python_vllm: str | None = None
    python_llama: str | None = None
    gguf: Path | None = None
    draft_gguf: Path | None = None
    peer_options: str | None = None

    def settings(self) -> Settings:
        """Checked; InputError for what cannot be run."""
        interpreters = {
            "hf": self.python_hf,
            "vllm": self.python_vllm,
            "llama": self.python_llama,
        }
        given = {
            "suite": self.suite,
            "data": self.data,
            "drafts": listed(self.draft),
            "peers": listed(self.peers),
            "model": self.model,
            "draft_model": self.draft_model,
            "head": self.head,
            "dtype": self.dtype,
            "device": self.device,
            "context_length": context_tokens(self.context_length),
            "temperatures": listed(self.temperature, float, "--temperature takes numbers"),
            "batches": listed(self.batch, int, "--batch takes whole numbers"),
            "contexts": listed(self.context, size, "--context takes whole numbers such as 4k"),
            "limit": self.limit,
            "groups": self.groups,
            "split": self.split,
            "categories": listed(self.category),
            "max_tokens": self._max_tokens(),
            "repeats": self.repeats,
            "rehearsals": self.rehearsals,
            "ignore_eos": self.ignore_eos,
            "quality": self.quality,
            "load_options": as_load_options(self.load_options),
            "threads": self.threads,
            "gguf": self.gguf,
            "draft_gguf": self.draft_gguf,
            "interpreters": {name: path for name, path in interpreters.items() if path},
            "peer_options": _peer_options(self.peer_options),
        }
        return Settings(**{name: value for name, value in given.items() if value is not None})

    def _max_tokens(self) -> int | None:
        """What is asked for, or what the suite's answers need."""
        if self.max_tokens is None and self.suite is not None:
            return longest_answer(self.suite)
        return self.max_tokens


def check_baseline(settings: Settings, baseline: str | None) -> None:
    """Refuse one that will not be measured."""
    if baseline is not None and baseline not in (*settings.drafts, *settings.peers):
        raise InputError(f"--baseline {baseline!r} is not among --draft and --peers")


def default_file(settings: Settings) -> Path:
    """Named after what may not change within a file, so that the same command finds it again."""
    model = Path(settings.model).name
    return Path("results") / f"{settings.suite}-{model}-{settings.dtype}.jsonl"


def context_tokens(text: str | None) -> int | None:
    """What --context-length means."""
    try:
        tokens = None if text is None else size(text)
    except ValueError:
        raise InputError(
            f"--context-length is a number of tokens such as 32k, not {text!r}"
        ) from None
    check_context_length(tokens)
    return tokens


def listed(
    text: str | None, kind: Callable[[str], Any] = str, rule: str = ""
) -> tuple[Any, ...] | None:
    """A comma-separated list, each entry once; None stays None."""
    if text is None:
        return None
    try:
        return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError:
        raise InputError(f"{rule}, separated by commas, not {text!r}") from None


def _peer_options(text: str | None) -> dict[str, list[str]] | None:
    if text is None:
        return None
    try:
        return {name: shlex.split(words) for name, words in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(
            """--peer-options is a JSON object such as '{"vllm-ngram": "--lookup-max 4"}'"""
        ) from None


def as_load_options(text: str | None) -> dict[str, Any] | None:
    """What --load-options means."""
    if text is None:
        return None
    try:
        return dict(json.loads(text).items())
    except (ValueError, AttributeError):
        raise InputError("""--load-options is a JSON object such as '{"gamma": 10}'""") from None
