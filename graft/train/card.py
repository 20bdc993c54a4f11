"""A head's model card: target, training and measured acceptance."""

from collections.abc import Sequence
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
    "eagle3": "EAGLE-3 (Li et al. 2025)",
    "eagle2": "EAGLE-2 (Li et al. 2024)",
    "longspec": "LongSpec (Yang et al. 2025)",
}
READS = {
    "eagle3": "Its input is the target's hidden states before layers {features} and the token\n"
    "after them.",
    "eagle2": "Its input is the target's last feature and the token after it.",
    "longspec": "Its input is the last {window} tokens and the keys and values of the\n"
    "target's last {layers}, so its own KV cache does not grow with the text.",
}


def training_facts(settings: Settings, head: Head, progress: Progress) -> dict[str, Any]:
    """The training section of the head's config."""
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
    """The name of the training device."""
    device = head.d2t.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu().name


def model_card(settings: Settings, dataset: Dataset, head: Head, progress: Progress) -> str:
    """The model card in Markdown."""
    config, rows = head.config, dataset.train
    files = ", ".join(Path(each).name for each in settings.data)
    minutes = progress.elapsed / 60
    epochs = progress.step * settings.batch / len(rows)
    initial = f"Initialised with the weights of {settings.start.name}.\n" if settings.start else ""
    return f"""# Draft head for {config.target}

{architecture(head)}

Target: {config.target} ({config.architecture}), fingerprint {config.fingerprint}.
For other weights, such as a quantised or fine-tuned version of the same model, name it: --head.
Fewer of its drafts may be accepted then.

Use: `graft run QUESTION --model {config.target} --head FOLDER`. The target verifies
its drafts, so they change the speed of an answer, never its text.

## Training

Trained by `graft train` on {files}{_answers(settings)}:
{len(rows)} rows of {settings.length} tokens, {int(rows.loss_mask.sum()):,} tokens in the loss.
{initial}{progress.step} steps of {settings.batch} rows ({epochs:.2f} epochs), {minutes:.1f} minutes
on {hardware(head)}. Loss {settings.loss}, learning rate {settings.learning_rate:g},
weight decay {settings.weight_decay:g}, seed {settings.seed}.

## Measured

Held out ({len(dataset.held_out)} rows): {_measured(progress)}

## Limits

It drafts only the {config.draft_vocabulary} ids of its draft vocabulary. It was trained on rows
of {settings.length} tokens; its acceptance on longer texts, other languages and other domains than
its data was not measured here. Its licence follows from those of its data
and of its target.
"""


def architecture(head: Head) -> str:
    """The architecture in a paragraph."""
    config = head.config
    size = sum(parameter.numel() for parameter in head.parameters())
    return f"""Kind: {config.kind}, {PAPERS[config.kind]}; {size / 1e6:.1f}M parameters; drafts
{config.draft_vocabulary} of {config.vocabulary} ids. {_target_parts(config)}
{_layer(config)}"""


def _target_parts(config: HeadConfig) -> str:
    if config.own_output:
        return "The embedding is the target's."
    return "Embedding and output layer are the target's."


def _layer(config: HeadConfig) -> str:
    count = config.cross_layers
    layers = "layer" if count == 1 else f"{count} layers"
    return (
        f"One layer of {config.hidden} channels, {config.heads} heads ({config.kv_heads} of keys "
        f"and values) of {config.head_size}, an MLP of {config.inner}.\n"
        + READS[config.kind].format(
            window=config.window, layers=layers, features=_listed(config.feature_layers)
        )
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _answers(settings: Settings) -> str:
    """How the data was processed."""
    done = (
        f", with the target's own answers to the first {settings.regenerate} questions "
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
        f"{progress.tokens_per_step:.2f} tokens per step, a chain of five greedy draft tokens\n"
        f"verified by the target's argmax. Accepted at depth 1, 2, ...: {rates}."
    )
