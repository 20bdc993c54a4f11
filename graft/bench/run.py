"""`graft bench`: draft presets and other engines on the user's prompts."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from graft.bench.decoding import PLAIN
from graft.bench.graft_engine import GraftEngine
from graft.bench.measure import Loop, Measurement, Progress, batched, interleave
from graft.bench.prompts import encode, read_prompts
from graft.bench.result_file import PROMPT, Results, new_header, open_results, pack_tokens
from graft.bench.variants import ENGINES, GRAFT, Variant, engine_variant, preset
from graft.bench.worker import (
    DTYPES,
    Backend,
    Worker,
    WorkerOptions,
    computes_in,
    start_worker,
)
from graft.decode.engine import Engine
from graft.errors import InputError
from graft.machine import usable_cores
from graft.models.checkpoints.pretrained import locate, widened

MIN_MODEL_LEN = 8192  # of other engines, where the model allows it: vLLM compiles by length


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """What is measured; every preset and engine gets the same prompts.

    `engines` are interpreters by variant, "" for this one.
    """

    prompts: Sequence[Path]
    drafts: Sequence[str] = (PLAIN, "auto")
    engines: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int = 128
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    repeats: int = 1
    limit: int | None = None
    verifier: str = "walk"
    gguf: Path | None = None
    draft_model: str | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeats", "limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1")
        if not self.drafts:
            raise InputError("--draft is empty; give presets such as plain,auto")
        if min(self.batches, default=0) < 1:
            raise InputError("--batch is a whole number from 1 on, or several such as 1,4")
        if not all(0 <= each <= 100 for each in self.temperatures):
            raise InputError("--temperature is a number from 0 to 100, or several such as 0,1")
        if self.gguf and not self.gguf.is_file():
            raise InputError(f"{self.gguf} does not exist")
        self.variants()

    def variants(self) -> list[Variant]:
        """Presets, then engines; InputError for one that is unknown."""
        given = {"gguf": self.gguf, "draft_model": self.draft_model}
        known = frozenset(name for name, value in given.items() if value)
        presets = [preset(name, self.verifier) for name in self.drafts]
        return presets + [engine_variant(name, known) for name in self.engines]


def bench(settings: BenchSettings, engine: Engine, progress: Progress) -> Results:
    """Measure what the file of the settings does not have yet."""
    prompts, notes = encode(
        engine, read_prompts(settings.prompts, settings.limit), settings.max_tokens
    )
    variants = settings.variants()
    for name in settings.engines:
        if not computes_in(name, engine.dtype):
            choices = ", ".join(DTYPES)
            raise InputError(f"{name} has no {engine.dtype}; choose a --dtype of {choices}")
    measurements = [
        Measurement(*each)
        for size in settings.batches
        for each in interleave(
            variants, batched(prompts, size), settings.temperatures, settings.repeats
        )
    ]
    with open_results(settings.out) as file, _backends(settings, engine) as backend:
        loop = Loop(file, backend, progress, settings.max_tokens, sorted(engine.loaded.eos_ids))
        if not all(file.results.has(each.row) for each in measurements):
            about = {"model": engine.model_name, "dtype": engine.dtype, "device": engine.device}
            file.begin(new_header("decode", about | _as_json(settings), notes))
            known = {line["prompt"] for line in file.results.records[PROMPT]}
            for each in prompts:
                if each.id not in known:
                    line = {"prompt": each.id, "context": 0, "category": each.category}
                    file.record(PROMPT, line | {"tokens": pack_tokens(each.token_ids)})
        loop.run(measurements)
        return file.results


def _as_json(settings: BenchSettings) -> dict[str, object]:
    found = asdict(settings) | {"engines": list(settings.engines)}
    found["prompts"] = [path.name for path in settings.prompts]
    for name in ("out", "gguf"):
        found[name] = found[name] and found[name].name
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def _backends(settings: BenchSettings, engine: Engine) -> Iterator[Callable[[Variant], Backend]]:
    """The engine of a variant; workers start when first used and end with the block."""
    started: dict[str, Backend] = {GRAFT: GraftEngine(engine)}
    with tempfile.TemporaryDirectory(prefix="graft-bench-") as logs:
        options = WorkerOptions(
            model=engine.loaded.checkpoint.folder,
            dtype=engine.dtype,
            device=engine.device,
            threads=usable_cores(),
            max_model_len=min(max(MIN_MODEL_LEN, settings.max_tokens), engine.context_length),
            batch=max(settings.batches),
            draft_model=widened(locate(settings.draft_model)).folder
            if settings.draft_model
            else None,
            gguf=settings.gguf,
            pythons={ENGINES[name].engine: path for name, path in settings.engines.items() if path},
            logs=Path(logs),
        )
        workers: list[Worker] = []

        def backend(variant: Variant) -> Backend:
            if variant.process not in started:
                workers.append(start_worker(variant, options))
                started[variant.process] = workers[-1]
            return started[variant.process]

        try:
            yield backend
        except BaseException:
            for worker in workers:
                worker.kill()
            raise
        for worker in workers:
            worker.close()
