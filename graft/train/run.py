"""A training run: data, target, head, loop, files."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from graft.errors import InputError
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.config import HeadConfig, default_features, head_config
from graft.models.heads.files import HEADS, Head, read_head, write_head
from graft.models.heads.row_masks import BLOCK
from graft.models.load import find_device, read_config
from graft.train.card import model_card, training_facts
from graft.train.compiling import compile_in_place, compiles
from graft.train.dataset import DataOptions, Dataset, files_of, prepare
from graft.train.journal import Journal
from graft.train.kept import KeptOutputs
from graft.train.loop import Loop, TrainingSetup
from graft.train.objectives import OBJECTIVES
from graft.train.processes import own_device, processes
from graft.train.regenerate import regenerate
from graft.train.settings import ANSWERS, Settings
from graft.train.start import init_from_target, init_random, widen
from graft.train.state import Progress
from graft.train.target import Target, load_target


def train(
    settings: Settings, say: Callable[[str], None], stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Train a head into `settings.out`; whether the run is complete. For ANSWERS, only generate the
    training data into this file.

    After a stop or a kill, the same settings resume from the last checkpoint.
    """
    if settings.kind == ANSWERS:
        files_of(settings.data)
        regenerate(settings, say)
        return True
    _check_out(settings.out)
    _check_layers(settings)
    files_of([*settings.data, *([settings.exclude] if settings.exclude else [])])
    taking_part = processes()
    journal = Journal(None if taking_part.rank else settings.work, say)
    files = _texts(settings, journal, first=taking_part.rank == 0)
    taking_part.broadcast(None)  # wait for the answers
    target = _target(settings, own_device(settings.device))
    if taking_part.rank:
        taking_part.broadcast(None)  # wait until the first process has built the rows
    dataset = _dataset(settings, target, files, journal)
    if not taking_part.rank:
        taking_part.broadcast(None)
    head = _head(settings, target, dataset)
    if compiles(target.output):
        compile_in_place(head)
    objective = OBJECTIVES[settings.kind](target, head, settings)
    setup = TrainingSetup(settings, head, objective, dataset, taking_part, journal)

    def save_head(progress: Progress) -> None:
        card = model_card(settings, dataset, head, progress)
        about = {"training": training_facts(settings, head, progress)}
        write_head(settings.out, head, dtype=settings.dtype, card=card, about=about)

    try:
        return Loop(setup, save_head).run(stopping)
    finally:
        journal.finish()


def _target(settings: Settings, device: str) -> Target:
    """The target with what the kind of head reads."""
    if find_device(device).type == "cuda" and settings.length % BLOCK:
        raise InputError(f"--length must be a multiple of {BLOCK} on a GPU")
    checkpoint = locate(settings.model)
    layers = read_config(checkpoint).get_text_config().num_hidden_layers
    cross = settings.cross_layers if settings.kind == "longspec" else 0
    features = default_features(settings.kind, layers)
    if settings.start:
        features = read_head(settings.start).config.feature_layers or features
    target = load_target(checkpoint, device, cross, features)
    if settings.keep_outputs:
        target.kept = KeptOutputs(int(settings.keep_outputs * 1e9))
    return target


def _texts(settings: Settings, journal: Journal, *, first: bool) -> list[str]:
    if not settings.regenerate:
        return list(settings.data)
    if first:
        answers = regenerate(settings, journal.say)
        gc.collect()  # free the engine
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    else:
        answers = settings.answers_file
    return [str(answers)]


def _dataset(settings: Settings, target: Target, files: list[str], journal: Journal) -> Dataset:
    options = DataOptions(
        settings.length,
        "" if settings.regenerate else settings.field,
        settings.all_tokens,
        settings.held_out,
        settings.exclude,
    )
    vocabulary = target.config.get_text_config().vocab_size
    journal.say("tokenising and packing the data")
    dataset = prepare(files, target.tokenizer, options, vocabulary)
    rows, tokens = len(dataset.train), int(dataset.train.loss_mask.sum())
    journal.say(
        f"{rows} rows of {settings.length} tokens, {tokens:,} of them in the loss; "
        f"{len(dataset.held_out)} rows held out"
    )
    return dataset


def _head(settings: Settings, target: Target, dataset: Dataset) -> Head:
    """A new head on the target's device, in fp32, or the one to start from."""
    if settings.start:
        return _started(settings.start, settings, target).to(target.device).train()
    ids = torch.from_numpy(dataset.draft_ids(settings.draft_vocabulary))
    config = head_config(
        settings.kind,
        target.checkpoint,
        target.config,
        draft_vocabulary=len(ids),
        window=settings.window,
        final_norm=not settings.no_final_norm,
        cross_layers=settings.cross_layers,
        **({"own_output": False} if settings.tied_output else {}),
        **({"inner": settings.inner} if settings.inner else {}),
    )
    return _new(config, ids, settings, target).to(target.device).train()


def _started(folder: Path, settings: Settings, target: Target) -> Head:
    """The head to start from, which may attend to fewer layers."""
    head = read_head(folder, target.checkpoint, target.config).float()
    if head.config.kind != settings.kind:
        raise InputError(f"{folder} is a head of kind {head.config.kind}")
    layers = head.config.cross_layers
    if layers > settings.cross_layers:
        raise InputError(f"{folder} attends to {layers} layers; use --cross-layers {layers}")
    if layers == settings.cross_layers:
        return head
    config = replace(head.config, cross_layers=settings.cross_layers)
    wider = _new(config, head.d2t, settings, target)
    widen(wider, head)
    return wider


def _new(config: HeadConfig, ids: Tensor, settings: Settings, target: Target) -> Head:
    head = HEADS[settings.kind](config)
    head.d2t.copy_(ids)
    init_random(head, settings.seed)
    if not settings.random_start:
        init_from_target(head, target.network)
    return head


def _check_layers(settings: Settings) -> None:
    """Raise InputError for more layers than the target has."""
    if settings.cross_layers > 1:
        layers = read_config(locate(settings.model)).get_text_config().num_hidden_layers
        if settings.cross_layers > layers:
            raise InputError(
                f"--cross-layers must be at most {layers}, the layers of {settings.model}"
            )


def _check_out(out: Path) -> None:
    """Raise InputError for an existing folder that is not a draft head."""
    if out.exists() and not (out / "config.json").is_file():
        raise InputError(f"{out} exists and is not a draft head; choose another --out")
