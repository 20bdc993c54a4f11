"""Settings of `python -m benchmarks decode`, checked before a model is loaded."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.decode.graft_variants import graft_variant, preset_of
from benchmarks.settings import Settings, option
from benchmarks.suites import max_answer_tokens
from graft.assemble.presets import check_draft
from graft.bench.variants import ENGINES, Variant, engine_variant
from graft.errors import InputError
from graft.machine import usable_cores
from graft.models.heads.installed import may_have_head, named_head
from graft.models.rope import check_context_length

QUALITIES = ("answers", "likelihood")
WHOLE = 0  # the context of prompts that are not cut
DEFAULT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Settings):
    """Presets and engines on the prompts of a suite; every temperature, batch and context."""

    kind: ClassVar[str] = "decode"
    at_least_one: ClassVar[tuple[str, ...]] = (*Settings.at_least_one, "groups")

    suite: str = option("spec_bench", "a file of benchmarks/suites")
    drafts: tuple[str, ...] = option(("plain", "auto"), "such as plain,sd@rejection,sd@0.8,rag")
    engines: tuple[str, ...] = option((), f"other engines: {', '.join(ENGINES)}")
    pythons: dict[str, str] = option(dict, 'interpreters by engine, {"vllm": "PATH"}')
    engine_options: dict[str, str] = option(dict, 'by variant, {"vllm-ngram": "--lookup-max 4"}')
    gguf: Path | None = option(None, "the model's weights for llama.cpp")
    temperatures: tuple[float, ...] = option((0.0,), "such as 0,1")
    batches: tuple[int, ...] = option((1,), "prompts at once, such as 1,4,16")
    contexts: tuple[int, ...] = option((WHOLE,), "tokens that documents are cut to, such as 4k,8k")
    groups: int | None = option(None, "max. batches of a cell")
    warm_ups: int = option(0, "complete runs of every request before the one that is timed")
    ignore_eos: bool = option(default=False, text="every output has --max-tokens tokens")
    quality: str = option("answers", "answers, or likelihood of gold answers too")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_ups < 0:
            raise InputError(f"--warm-ups must be at least 0, not {self.warm_ups}")
        if min(self.batches, default=0) < 1:
            raise InputError("--batches takes whole numbers from 1 on, such as 1,4,16")
        if self.contexts != (WHOLE,) and min(self.contexts, default=0) < 1:
            raise InputError("--contexts takes numbers of tokens from 1 on, such as 1k,2k,4k")
        if not all(math.isfinite(value) and 0 <= value <= 100 for value in self.temperatures):
            raise InputError("--temperatures takes numbers from 0 to 100, such as 0,1")
        check_context_length(self.context_length)
        if self.quality not in QUALITIES:
            raise InputError(f"--quality is one of {', '.join(QUALITIES)}")
        self._check_variants()

    def _check_variants(self) -> None:
        if not self.drafts and not self.engines:
            raise InputError("nothing to measure; give --drafts or --engines")
        if self.dtype == "auto" and not self.drafts:
            raise InputError("--dtype auto needs a preset of Graft; give --dtype")
        if self.engines and self.context_length is not None:
            raise InputError("--context-length is for Graft alone; omit it with --engines")
        head = may_have_head(named_head(self.head))
        for variant in self.variants():
            if variant.name in self.drafts:
                preset = preset_of(variant.method)
                check_draft(preset, draft_model=self.draft_model is not None, head=head)
        if self.gguf is not None and not self.gguf.is_file():
            raise InputError(f"{self.gguf} does not exist; it must be a GGUF file")
        if unknown := set(self.engine_options) - set(self.engines):
            raise InputError(f"--engine-options has {unknown.pop()!r}, which is not in --engines")

    def variants(self) -> list[Variant]:
        """Presets of Graft, then other engines."""
        names = ("gguf", "draft_model")
        given = frozenset(name for name in names if getattr(self, name))
        graft = [graft_variant(name) for name in self.drafts]
        return graft + [engine_variant(name, given) for name in self.engines]

    @property
    def output_tokens(self) -> int:
        """Max. tokens of an output: as given, or as the suite needs."""
        return self.max_tokens or max_answer_tokens(self.suite) or DEFAULT_TOKENS

    @property
    def cores(self) -> int:
        """Threads of every engine."""
        return self.threads or usable_cores()

    @property
    def extra(self) -> dict[str, list[str]]:
        """Arguments of workers by variant."""
        return {name: shlex.split(words) for name, words in self.engine_options.items()}

    def as_json(self) -> dict[str, Any]:
        """With the values that are not given."""
        found = {"max_tokens": self.output_tokens, "threads": self.cores}
        return super().as_json() | found
