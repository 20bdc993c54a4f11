"""A head's model card: what it was trained from and for, and what was measured."""

from pathlib import Path
from typing import Any

from graft.models.head_files import Head
from graft.train.dataset import Dataset
from graft.train.settings import Settings
from graft.train.state import Progress

PAPERS = {
    "eagle2": "EAGLE-2 (Li et al. 2024)",
    "longspec": "LongSpec (Yang et al. 2025)",
}


def training_facts(settings: Settings, progress: Progress) -> dict[str, Any]:
    """The same for programs, in the head's config."""
    return {
        "data": [Path(each).name for each in settings.data],
        "regenerated": settings.regenerate,
        "steps": progress.step,
        "rows_per_step": settings.batch,
        "length": settings.length,
        "minutes": round(progress.elapsed / 60, 2),
        "loss": settings.loss,
        "tokens_per_step": progress.tokens_per_step,
    }


def model_card(settings: Settings, dataset: Dataset, head: Head, progress: Progress) -> str:
    """Markdown."""
    config, learned = head.config, dataset.learned
    size = sum(parameter.numel() for parameter in head.parameters())
    files = ", ".join(Path(each).name for each in settings.data)
    answers = (
        f", of which the target answered the first {settings.regenerate} questions itself "
        f"(temperature {settings.temperature:g}, up to {settings.answer_tokens} tokens)"
        if settings.regenerate
        else ""
    )
    if settings.exclude:
        answers += f"; no text shares 13 words in a row with {Path(settings.exclude).name}"
    measured = (
        f"{progress.tokens_per_step:.2f} tokens per step"
        if progress.tokens_per_step
        else "not measured yet"
    )
    minutes = progress.elapsed / 60
    epochs = progress.step * settings.batch / len(learned)
    return f"""# Draft head for {config.target}

Kind: {settings.kind}, {PAPERS[settings.kind]}; {size / 1e6:.1f}M parameters; drafts
{config.draft_vocabulary} of {config.vocabulary} ids. Embedding and output layer are the target's.
Target: {config.target} ({config.architecture}), fingerprint {config.fingerprint}.

Trained by `graft train` on {files}{answers}:
{len(learned)} rows of {settings.length} tokens, {int(learned.learned.sum()):,} tokens learned from.
{progress.step} steps of {settings.batch} rows ({epochs:.2f} epochs), {minutes:.1f} minutes.
Loss {settings.loss}, learning rate {settings.learning_rate:g}, seed {settings.seed}.

Held out ({len(dataset.held_out)} rows): {measured}, a chain of five greedy guesses checked
against the target's likeliest token.
"""
