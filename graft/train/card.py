"""A head's model card: what it was trained from and for, and what was measured."""

from pathlib import Path
from typing import Any

import torch

from graft.machine import cpu
from graft.models.heads.config import HeadConfig
from graft.models.heads.files import Head
from graft.train.dataset import Dataset
from graft.train.settings import Settings
from graft.train.state import Progress

PAPERS = {
    "eagle2": "EAGLE-2 (Li et al. 2024)",
    "longspec": "LongSpec (Yang et al. 2025)",
}
READS = {
    "eagle2": "It reads the target's last feature and the token that followed.",
    "longspec": "It reads the last {window} tokens and the keys and values of the target's last\n"
    "{layers}, so its own memory does not grow with the text.",
}


def training_facts(settings: Settings, head: Head, progress: Progress) -> dict[str, Any]:
    """The same for programs, in the head's config."""
    return {
        "data": [Path(each).name for each in settings.data],
        "regenerated": settings.regenerate,
        "steps": progress.step,
        "rows_per_step": settings.batch,
        "length": settings.length,
        "minutes": round(progress.elapsed / 60, 2),
        "hardware": hardware(head),
        "loss": settings.loss,
        "learning_rate": settings.learning_rate,
        "seed": settings.seed,
        "tokens_per_step": progress.tokens_per_step,
        "accepted": progress.accepted,
    }


def hardware(head: Head) -> str:
    """What it is trained on."""
    device = head.d2t.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu().name


def model_card(settings: Settings, dataset: Dataset, head: Head, progress: Progress) -> str:
    """Markdown."""
    config, learned = head.config, dataset.learned
    files = ", ".join(Path(each).name for each in settings.data)
    minutes = progress.elapsed / 60
    epochs = progress.step * settings.batch / len(learned)
    begun = f"Begun with the weights of {settings.start.name}.\n" if settings.start else ""
    return f"""# Draft head for {config.target}

{architecture(head)}

Target: {config.target} ({config.architecture}), fingerprint {config.fingerprint}.
For other weights, a fine-tuned version of the same model among them, it is refused.

Use: `graft run QUESTION --model {config.target} --head FOLDER`. Its guesses are checked by the
target, so they change how fast an answer comes, never what it says.

## Training

Trained by `graft train` on {files}{_answers(settings)}:
{len(learned)} rows of {settings.length} tokens, {int(learned.learned.sum()):,} tokens learned from.
{begun}{progress.step} steps of {settings.batch} rows ({epochs:.2f} epochs), {minutes:.1f} minutes
on {hardware(head)}. Loss {settings.loss}, learning rate {settings.learning_rate:g},
weight decay {settings.weight_decay:g}, seed {settings.seed}.

## Measured

Held out ({len(dataset.held_out)} rows): {_measured(progress)}

## Limits

Only the {config.draft_vocabulary} ids of its draft vocabulary are ever guessed. It was trained on
rows of {settings.length} tokens; how it guesses in longer texts, in other languages or on other
matters than those of its data was not measured here. Its licence follows from those of its data
and of its target.
"""


def architecture(head: Head) -> str:
    """What kind of network it is, in a paragraph."""
    config = head.config
    size = sum(parameter.numel() for parameter in head.parameters())
    return f"""Kind: {config.kind}, {PAPERS[config.kind]}; {size / 1e6:.1f}M parameters; drafts
{config.draft_vocabulary} of {config.vocabulary} ids. Embedding and output layer are the target's.
{_layer(config)}"""


def _layer(config: HeadConfig) -> str:
    count = config.cross_layers
    layers = "layer" if count == 1 else f"{count} layers"
    return (
        f"One layer of {config.hidden} channels, {config.heads} heads ({config.kv_heads} of keys "
        f"and values) of {config.head_size}, an MLP of {config.inner}.\n"
        + READS[config.kind].format(window=config.window, layers=layers)
    )


def _answers(settings: Settings) -> str:
    """What was done with the data."""
    done = (
        f", of which the target answered the first {settings.regenerate} questions itself "
        f"(temperature {settings.temperature:g}, up to {settings.answer_tokens} tokens)"
        if settings.regenerate
        else ""
    )
    if settings.exclude:
        done += f"; no text shares 13 words in a row with {Path(settings.exclude).name}"
    return done


def _measured(progress: Progress) -> str:
    if progress.tokens_per_step is None:
        return "not measured yet."
    rates = ", ".join(f"{rate:.2f}" for rate in progress.accepted)
    return (
        f"{progress.tokens_per_step:.2f} tokens per step, a chain of five greedy guesses checked\n"
        f"against the target's likeliest token. Right up to the first, second, ... guess: {rates}."
    )
