"""Measure presets and engines on a suite: what the file does not have yet."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from benchmarks.decode.encode import Workload, encode
from benchmarks.decode.gold import Likelihoods
from benchmarks.decode.graft_variants import SuiteEngine, preset_of
from benchmarks.decode.settings import DecodeSettings
from benchmarks.settings import load_arguments
from benchmarks.suites.task import Prompt, chat, read_suite, select
from graft.bench.measure import Loop, Measurement, Progress, batched, interleave
from graft.bench.result_file import GOLD, PROMPT, ResultFile, Row, new_header, pack_tokens
from graft.bench.variants import GRAFT, Variant
from graft.bench.worker import (
    DTYPES,
    Backend,
    Worker,
    WorkerOptions,
    computes_in,
    start_worker,
)
from graft.draft.short_context.retrieved import DEFAULT_BUDGET, DEFAULT_RETRIEVER, Retrieval
from graft.errors import InputError
from graft.models.checkpoints.pretrained import Checkpoint, locate, widened
from graft.models.load import find_device

SETTINGS = DecodeSettings
REPLY_TOKENS = 128  # of a reply to a follow-up question


def run(settings: DecodeSettings, file: ResultFile, progress: Progress) -> bool:
    """False if a variant had to be given up."""
    suite = read_suite(settings.suite, settings.data)
    chosen = select(suite, limit=None, split=settings.split, categories=settings.categories)
    checkpoint = locate(settings.model)
    if not all(computes_in(each, "gguf") for each in settings.engines):
        checkpoint = widened(checkpoint)  # other engines do not read GGUF files
    workload = encode(checkpoint.folder, chosen, settings)
    for note in workload.notes:
        progress.say(note)
    with backends(settings, checkpoint, workload) as running:
        measurements = list(_measurements(settings, running, workload, progress))
        loop = Loop(
            file,
            running.get,
            progress,
            settings.output_tokens,
            [] if settings.ignore_eos else workload.end_tokens,
            settings.warm_ups,
            _Texts(workload).complete,
        )
        likelihoods = Likelihoods(settings, workload, file)
        if likelihoods.left(measurements) or not all(
            file.results.has(each.row) for each in measurements
        ):
            _begin(settings, file, running, workload, suite)
        complete = loop.run(measurements)
        likelihoods.measure(loop, measurements)
    return complete


def _measurements(
    settings: DecodeSettings, running: "Backends", workload: Workload, progress: Progress
) -> Iterator[Measurement]:
    """Cell by cell, the variants of a batch in turn."""
    able = []
    for variant in settings.variants():
        if variant.name in settings.engines and not computes_in(variant.name, running.dtype):
            progress.say(f"{variant.name} is left out: it has no {running.dtype}")
            continue
        if not variant.batches and max(settings.batches) > 1:
            progress.say(f"{variant.name} takes one prompt at a time: no batches")
        able.append(variant)
    for context, prompts in workload.prompts.items():
        for size in settings.batches:
            groups = batched([each.tokens for each in prompts], size)[: settings.groups]
            for each in interleave(able, groups, settings.temperatures, settings.repeats):
                yield Measurement(*each, context=context, suite=settings.suite)


def _begin(
    settings: DecodeSettings,
    file: ResultFile,
    running: "Backends",
    workload: Workload,
    suite: list[Prompt],
) -> None:
    """The header, and the prompts and gold answers that the file does not have."""
    about = settings.as_json() | {
        "model": running.checkpoint.name,
        "weights": running.checkpoint.fingerprint[:16],
        "questions": hashlib.sha256(repr(suite).encode()).hexdigest()[:16],
        "dtype": running.dtype,
        "device": running.device,
    }
    file.begin(new_header(settings.kind, about, workload.notes))
    known = {(line["prompt"], line["context"]) for line in file.results.records[PROMPT]}
    scored = {line["prompt"] for line in file.results.records[GOLD]}
    for context, prompts in workload.prompts.items():
        for each in prompts:
            number, gold = each.prompt.number, each.prompt.gold
            if (number, context) not in known:
                line = {"prompt": number, "context": context, "category": each.prompt.category}
                file.record(PROMPT, line | {"tokens": pack_tokens(each.token_ids)})
            if gold and number not in scored:
                scored.add(number)
                line = {"prompt": number, "kind": gold.kind, "references": list(gold.references)}
                file.record(GOLD, line)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Adds to rows what is compared with gold answers."""

    workload: Workload

    def complete(
        self, measurement: Measurement, row: Row, answer: dict[str, Any], backend: Backend
    ) -> Row:
        """The text of new outputs, and replies to follow-up questions, which are not timed."""
        prompts = [self.workload.by_number[each.id] for each in measurement.prompts]
        if not any(prompt.gold for prompt in prompts):
            return row
        cutter = self.workload.cutter
        texts = [cutter.text(tokens) for tokens in answer["token_ids"]]
        if "token_ids" in row:
            row = row | {"texts": texts}
        if not all(prompt.follow_up for prompt in prompts):
            return row
        questions = [
            cutter.tokens(chat(prompt.follow_up.replace("{answer}", text.strip())))
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        request = {
            "id": "reply", "prompts": questions, "max_tokens": REPLY_TOKENS, "method": "plain",
            "end_tokens": self.workload.end_tokens, "temperature": measurement.temperature,
            "seeds": row["prompts"],
        }  # fmt: skip
        replies = backend.ask(request)["token_ids"]
        return row | {"replies": [cutter.text(tokens) for tokens in replies]}


@dataclass(slots=True)
class Backends:
    """The engines of a run: Graft in this process, others as workers, started when first used."""

    settings: DecodeSettings
    checkpoint: Checkpoint
    max_model_len: int  # of other engines
    device: str
    dtype: str
    running: dict[str, Backend] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    workload: Workload | None = None

    def get(self, variant: Variant) -> Backend:
        """The running engine of a variant."""
        if variant.process not in self.running:
            if variant.engine.partition("@")[0] == GRAFT:
                self.running[variant.process] = self._graft(variant)
            else:
                self.workers.append(start_worker(variant, self._options()))
                self.running[variant.process] = self.workers[-1]
        return self.running[variant.process]

    def _graft(self, variant: Variant) -> SuiteEngine:
        import torch

        import graft
        from graft.models.forward_panels import use_threads

        settings = self.settings
        torch.set_num_threads(settings.cores)
        use_threads()
        verifier, _, eta = (variant.engine.partition("@")[2] or "walk").partition(":")
        options = {"max_batch": max(settings.batches), "prefix_cache": 0, "shift": graft.Shift()}
        options |= {"retriever": DEFAULT_RETRIEVER, "retrieved": DEFAULT_BUDGET}
        options |= load_arguments(settings.load_options)
        if eta:
            options["shift"] = replace(options["shift"], eta=float(eta))
        engine = graft.load(
            str(self.checkpoint.folder) if Path(settings.model).is_dir() else settings.model,
            draft_model=settings.draft_model,
            head=None if settings.head == "none" else settings.head,
            dtype=self.dtype,
            device=self.device,
            context_length=settings.context_length,
            draft="auto" if verifier == "walk" else preset_of(variant.method),
            verifier=verifier,
            **options,
        )
        self.dtype = engine.dtype
        about = {"threads": settings.cores, "verifier": verifier, "eta": eta}
        about |= {"draft_model": settings.draft_model, "prefix_cache": options["prefix_cache"]}
        retrieval = Retrieval(options["retriever"], options["retrieved"])
        return SuiteEngine(
            engine,
            about,
            retrieval=retrieval,
            prefill_first=bool(options["prefix_cache"]),
            workload=self.workload,
        )

    def _options(self) -> WorkerOptions:
        settings = self.settings
        draft = settings.draft_model if "transformers-assisted" in settings.engines else None
        return WorkerOptions(
            model=self.checkpoint.folder,
            dtype=self.dtype,
            device=self.device,
            threads=settings.cores,
            max_model_len=self.max_model_len,
            batch=max(settings.batches),
            draft_model=draft and widened(locate(draft)).folder,
            gguf=settings.gguf,
            pythons=settings.pythons,
            extra=settings.extra,
            logs=settings.out.parent if settings.out else Path(gettempdir()),
        )


@contextmanager
def backends(
    settings: DecodeSettings, checkpoint: Checkpoint, workload: Workload | None = None
) -> Iterator[Backends]:
    """Engines that end with the block; `dtype` auto is what Graft chooses."""
    device = settings.device if settings.device != "auto" else find_device("auto").type
    max_model_len = workload.max_model_len if workload else 0
    found = Backends(settings, checkpoint, max_model_len, device, settings.dtype, workload=workload)
    if settings.dtype == "auto":
        found.get(next(each for each in settings.variants() if each.name in settings.drafts))
    if settings.engines and found.dtype not in DTYPES and not settings.drafts:
        raise InputError(f"other engines have no {found.dtype}; choose from {', '.join(DTYPES)}")
    try:
        yield found
    except BaseException:
        for worker in found.workers:
            worker.kill()
        raise
    for worker in found.workers:
        worker.close()
