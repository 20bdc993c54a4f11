"""The training loop: rows, gradients, optimizer step, log, checkpoint."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graft.errors import InputError
from graft.models.heads.files import Head
from graft.train.batches import batch_of
from graft.train.dataset import Dataset, rows_at
from graft.train.journal import Journal
from graft.train.objectives import Objective, chains, counted_tokens
from graft.train.processes import Processes
from graft.train.schedule import learning_rate, progress
from graft.train.settings import Settings
from graft.train.state import Progress, load_state, save_state

BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 0.5
LOG_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """Everything that the loop uses."""

    settings: Settings
    head: Head
    objective: Objective
    dataset: Dataset
    processes: Processes
    journal: Journal


class Loop:
    """Runs from the last checkpoint on."""

    def __init__(self, setup: TrainingSetup, save_head: Callable[[Progress], None]) -> None:
        self._setup, self._save_head = setup, save_head
        self._settings, self._head = setup.settings, setup.head
        self._rows, self._processes = setup.dataset.train, setup.processes
        self._device = next(setup.head.parameters()).device
        self._optimizer = _optimizer(setup.head, setup.settings)
        self._progress = load_state(self._settings, self._head, self._optimizer)
        self._forward = self._processes.prepare(self._head)
        self._before = self._progress.elapsed
        self._began = self._logged = self._saved = time.monotonic()
        self._since: list[Tensor] = []  # losses since the last log line
        if self._settings.batch % self._processes.count:
            raise InputError(f"--batch must be a multiple of {self._processes.count} processes")

    def run(self, stopping: Callable[[], bool]) -> bool:
        """Train; whether the run is complete."""
        if self._progress.step:
            self._setup.journal.say(f"resuming after step {self._progress.step}")
        measured = int(self._done() * self._settings.evaluations)
        first, stopped = self._progress.step, False
        while self._done() < 1 and not stopped:
            self._since.append(self._train_step(self._progress.step))
            if self._progress.step == first:
                self._began = time.monotonic()  # the first step includes compilation
            self._progress.step += 1
            elapsed = self._before + time.monotonic() - self._began
            self._progress.elapsed, stopped = self._processes.broadcast((elapsed, stopping()))
            due = int(self._done() * self._settings.evaluations)
            if due > measured:
                measured = due
                self._measure()
            self._log()
            self._save()
        if not stopped and measured < self._settings.evaluations:
            self._measure()
        self._log(now=True)
        self._save(now=True)
        return not stopped

    def _done(self) -> float:
        return progress(self._settings, self._progress.step, self._progress.elapsed)

    def _train_step(self, step: int) -> Tensor:
        """One step of the optimizer; the mean loss of this process's tokens."""
        settings, processes = self._settings, self._processes
        chosen = rows_at(step * settings.batch, settings.batch, len(self._rows), settings.seed)
        counted = max(1, counted_tokens(self._rows, chosen, self._setup.objective.ahead))
        parts = list(_parts(chosen[processes.rank :: processes.count], settings.micro_batch))
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts):
            random = np.random.default_rng([settings.seed, step, processes.rank, number])
            with processes.accumulating(self._forward, last=number == len(parts) - 1):
                with self._precision():
                    batch = batch_of(self._rows, part, self._device)
                    batch = replace(batch, rows=tuple(part.tolist()))
                    outcome = self._setup.objective.learn(self._forward, batch, random)
                processes.backward(outcome.loss / counted)
            total += outcome.loss.detach() / counted
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), MAX_GRADIENT_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._settings, self._done())
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total * processes.count

    def _precision(self) -> torch.autocast:
        kind = self._device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu")

    def _measure(self) -> None:
        """Tokens per step on held-out rows, verified by the target's argmax.

        In batches of the size of training and with gradients, so nothing is compiled again.
        """
        if self._processes.rank:
            return
        rows, measured = self._setup.dataset.held_out, []
        size = self._settings.micro_batch or self._settings.batch // self._processes.count
        for part in _parts(np.arange(len(rows)), size):
            with self._precision():
                batch = batch_of(rows, np.resize(part, size), self._device)
                batch.loss_mask[len(part) :] = False
                measured.append(chains(self._setup.objective.measure(self._head, batch)))
        accepted, counts = zip(*measured, strict=True)
        rates = (torch.stack(accepted).sum(0) / max(sum(counts), 1)).tolist()
        step, tokens_per_step = self._progress.step, round(1 + sum(rates), 4)
        self._progress.tokens_per_step = tokens_per_step
        self._progress.accepted = [round(rate, 4) for rate in rates]
        self._setup.journal.note(
            step=step, tokens_per_step=tokens_per_step, accepted=self._progress.accepted
        )
        shown = " ".join(f"{rate:.2f}" for rate in rates)
        self._setup.journal.say(
            f"step {step}: held out, {tokens_per_step:.2f} tokens per step (accepted {shown})"
        )

    def _log(self, *, now: bool = False) -> None:
        seconds = time.monotonic() - self._logged
        if not self._since or (seconds < LOG_SECONDS and not now):
            return
        loss = torch.stack(self._since).mean().item()
        speed = len(self._since) * self._settings.batch * self._settings.length / seconds
        done = self._done()
        left = self._progress.elapsed / done * (1 - done)
        step, rate = self._progress.step, learning_rate(self._settings, done)
        self._setup.journal.note(
            step=step, loss=loss, tokens_per_second=speed, learning_rate=rate,
            elapsed=self._progress.elapsed,
        )  # fmt: skip
        self._setup.journal.say(
            f"step {step} ({100 * done:.0f} %): loss {loss:.4f}, {speed:,.0f} tokens/s, "
            f"{left / 60:.1f} min left"
        )
        self._since, self._logged = [], time.monotonic()

    def _save(self, *, now: bool = False) -> None:
        if self._processes.rank:
            return
        if now or time.monotonic() - self._saved >= 60 * self._settings.save_minutes:
            save_state(self._settings, self._head, self._optimizer, self._progress)
            self._save_head(self._progress)
            self._saved = time.monotonic()


def _optimizer(head: Head, settings: Settings) -> torch.optim.AdamW:
    matrices = [p for p in head.parameters() if p.dim() > 1]
    others = [p for p in head.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(head.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS, fused=fused)


def _parts(chosen: np.ndarray, max_size: int) -> Iterator[np.ndarray]:
    """Parts of at most `max_size`; 0 means one part."""
    size = max_size or len(chosen)
    for first in range(0, len(chosen), size):
        yield chosen[first : first + size]
