"""A whole run: data, target, head, loop, files."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from graft.errors import InputError
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.config import HeadConfig, head_config
from graft.models.heads.files import HEADS, Head, read_head, write_head
from graft.models.load import read_config
from graft.train.card import model_card, training_facts
from graft.train.compiling import compile_in_place, compiles
from graft.train.dataset import Dataset, Wanted, files_of, prepare
from graft.train.journal import Journal
from graft.train.loop import Lessons, Loop
from graft.train.losses import OutputLayer
from graft.train.objectives import OBJECTIVES
from graft.train.processes import own_device, processes
from graft.train.regenerate import regenerate
from graft.train.settings import Settings
from graft.train.start import begin_like_target, draw_weights, take_over
from graft.train.state import Progress
from graft.train.target import Target, load_target


def train(
    settings: Settings, say: Callable[[str], None], stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Train a head into `settings.out`; whether the run came to its end.

    Stopped or killed, the same settings go on where it was.
    """
    _check_out(settings.out)
    _check_layers(settings)
    files_of([*settings.data, *([settings.exclude] if settings.exclude else [])])
    taking_part = processes()
    journal = Journal(None if taking_part.rank else settings.work, say)
    files = _texts(settings, journal, first=taking_part.rank == 0)
    taking_part.agree(None)  # the others wait for the answers
    target = load_target(settings.model, own_device(settings.device), settings.cross_layers)
    if taking_part.rank:
        taking_part.agree(None)  # until the first process has made the rows
    dataset = _dataset(settings, target, files, journal)
    if not taking_part.rank:
        taking_part.agree(None)
    head = _head(settings, target, dataset)
    if compiles(target.output):
        compile_in_place(head)
    output = OutputLayer.of(target.output, head.d2t)
    objective = OBJECTIVES[settings.kind](target, output, settings)
    lessons = Lessons(settings, head, objective, dataset, taking_part, journal)

    def save_head(progress: Progress) -> None:
        card = model_card(settings, dataset, head, progress)
        about = {"training": training_facts(settings, head, progress)}
        write_head(settings.out, head, dtype=settings.dtype, card=card, about=about)

    try:
        return Loop(lessons, save_head).run(stopping)
    finally:
        journal.finish()


def _texts(settings: Settings, journal: Journal, *, first: bool) -> list[str]:
    if not settings.regenerate:
        return list(settings.data)
    if first:
        answers = regenerate(settings, journal.say)
        gc.collect()  # the engine's memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    else:
        answers = settings.answers or settings.work / "answers.jsonl"
    return [str(answers)]


def _dataset(settings: Settings, target: Target, files: list[str], journal: Journal) -> Dataset:
    wanted = Wanted(
        settings.length,
        "" if settings.regenerate else settings.field,
        settings.all_tokens,
        settings.held_out,
        settings.exclude,
    )
    vocabulary = target.config.get_text_config().vocab_size
    journal.say("reading and packing the data")
    dataset = prepare(files, target.tokenizer, wanted, vocabulary)
    rows, tokens = len(dataset.learned), int(dataset.learned.learned.sum())
    journal.say(
        f"{rows} rows of {settings.length} tokens, {tokens:,} of them to learn; "
        f"{len(dataset.held_out)} rows held out"
    )
    return dataset


def _head(settings: Settings, target: Target, dataset: Dataset) -> Head:
    """A new head on the target's device, in fp32, or the one to start from."""
    if settings.start:
        return _started(settings, target).to(target.device).train()
    ids = torch.from_numpy(dataset.draft_ids(settings.draft_vocabulary))
    config = head_config(
        settings.kind,
        target.checkpoint,
        target.config,
        draft_vocabulary=len(ids),
        window=settings.window,
        final_norm=not settings.no_final_norm,
        cross_layers=settings.cross_layers,
    )
    head = _new(config, settings, target)
    head.d2t.copy_(ids)
    return head.to(target.device).train()


def _started(settings: Settings, target: Target) -> Head:
    """The head to start from, which may have looked at fewer layers."""
    head = read_head(settings.start, target.checkpoint, target.config).float()
    if head.config.kind != settings.kind:
        raise InputError(f"{settings.start} is a head of kind {head.config.kind}")
    layers = head.config.cross_layers
    if layers > settings.cross_layers:
        raise InputError(f"{settings.start} looks at {layers} layers; say --cross-layers {layers}")
    if layers == settings.cross_layers:
        return head
    config = replace(head.config, cross_layers=settings.cross_layers)
    wider = _new(config, settings, target)
    take_over(wider, head)
    return wider


def _new(config: HeadConfig, settings: Settings, target: Target) -> Head:
    head = HEADS[settings.kind](config)
    draw_weights(head, settings.seed)
    if not settings.random_start:
        begin_like_target(head, target.network)
    return head


def _check_layers(settings: Settings) -> None:
    """Refuse to look at more layers than the target has, before anything is made."""
    if settings.cross_layers > 1:
        layers = read_config(locate(settings.model)).get_text_config().num_hidden_layers
        if settings.cross_layers > layers:
            raise InputError(
                f"--cross-layers must be at most {layers}, the layers of {settings.model}"
            )


def _check_out(out: Path) -> None:
    """Refuse to replace what is no head."""
    if out.exists() and not (out / "config.json").is_file():
        raise InputError(f"{out} exists and is no draft head; name another --out")
