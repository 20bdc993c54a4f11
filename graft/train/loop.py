"""The loop: take rows, learn, step, tell, save; stop at the end or when asked to."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from graft.train.schedule import Schedule
from graft.train.settings import Settings
from graft.train.state import Progress, load_state, save_state

BETAS = (0.9, 0.95)
CLIP = 0.5  # greatest norm of a step's gradient
TELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Lessons:
    """What is learned by whom."""

    settings: Settings
    head: Head
    objective: Objective
    dataset: Dataset
    processes: Processes
    journal: Journal


class Loop:
    """One stretch of a run; the same command goes on where the last one ended."""

    def __init__(self, lessons: Lessons, save_head: Callable[[Progress], None]) -> None:
        self._lessons, self._save_head = lessons, save_head
        self._settings, self._head = lessons.settings, lessons.head
        self._rows, self._processes = lessons.dataset.learned, lessons.processes
        self._device = next(lessons.head.parameters()).device
        self._schedule = Schedule.of(lessons.settings)
        self._optimizer = _optimizer(lessons.head, lessons.settings)
        self._progress = load_state(self._settings, self._head, self._optimizer)
        self._forward = self._processes.prepare(self._head)
        self._before = self._progress.elapsed
        self._began = self._told = self._saved = time.monotonic()
        self._since: list[Tensor] = []  # losses since the last line
        if self._settings.batch % self._processes.count:
            raise InputError(f"--batch must be a multiple of {self._processes.count} processes")

    def run(self, stopping: Callable[[], bool]) -> bool:
        """Whether the run came to its end."""
        if self._progress.step:
            self._lessons.journal.say(f"going on after step {self._progress.step}")
        measured = int(self._done() * self._settings.evaluations)
        first, stopped = self._progress.step, False
        while self._done() < 1 and not stopped:
            self._since.append(self._learn(self._progress.step))
            if self._progress.step == first:
                self._began = time.monotonic()  # the first step compiles, which is no training
            self._progress.step += 1
            elapsed = self._before + time.monotonic() - self._began
            self._progress.elapsed, stopped = self._processes.agree((elapsed, stopping()))
            due = int(self._done() * self._settings.evaluations)
            if due > measured:
                measured = due
                self._measure()
            self._tell()
            self._save()
        if not stopped and measured < self._settings.evaluations:
            self._measure()
        self._tell(now=True)
        self._save(now=True)
        return not stopped

    def _done(self) -> float:
        return self._schedule.progress(self._progress.step, self._progress.elapsed)

    def _learn(self, step: int) -> Tensor:
        """One step of the optimizer; the mean loss of this process's tokens."""
        settings, processes = self._settings, self._processes
        chosen = rows_at(step * settings.batch, settings.batch, len(self._rows), settings.seed)
        counted = max(1, counted_tokens(self._rows, chosen, self._lessons.objective.ahead))
        parts = list(_parts(chosen[processes.rank :: processes.count], settings.micro_batch))
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts):
            random = np.random.default_rng([settings.seed, step, processes.rank, number])
            with processes.accumulating(self._forward, last=number == len(parts) - 1):
                with self._precision():
                    batch = batch_of(self._rows, part, self._device)
                    outcome = self._lessons.objective.learn(self._forward, batch, random)
                processes.backward(outcome.loss / counted)
            total += outcome.loss.detach() / counted
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate(self._done())
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total * processes.count

    def _precision(self) -> torch.autocast:
        kind = self._device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind != "cpu")

    @torch.no_grad()
    def _measure(self) -> None:
        """Tokens per step on held-out rows, each guess checked by the target's likeliest token."""
        if self._processes.rank:
            return
        rows, begun, kept = self._lessons.dataset.held_out, 0, None
        share = max(1, (self._settings.micro_batch or self._settings.batch) // 2)
        for part in _parts(np.arange(len(rows)), share):
            with self._precision():
                batch = batch_of(rows, part, self._device)
                went, started = chains(self._lessons.objective.measure(self._head, batch))
            kept = went if kept is None else kept + went
            begun += started
        rates = (kept / max(begun, 1)).tolist()
        step, accepted = self._progress.step, round(1 + sum(rates), 4)
        self._progress.tokens_per_step = accepted
        self._progress.accepted = [round(rate, 4) for rate in rates]
        self._lessons.journal.note(
            step=step, tokens_per_step=accepted, accepted=self._progress.accepted
        )
        shown = " ".join(f"{rate:.2f}" for rate in rates)
        self._lessons.journal.say(
            f"step {step}: held out, {accepted:.2f} tokens per step (accepted {shown})"
        )

    def _tell(self, *, now: bool = False) -> None:
        seconds = time.monotonic() - self._told
        if not self._since or (seconds < TELL_SECONDS and not now):
            return
        loss = torch.stack(self._since).mean().item()
        speed = len(self._since) * self._settings.batch * self._settings.length / seconds
        done = self._done()
        left = self._progress.elapsed / done * (1 - done)
        step, rate = self._progress.step, self._schedule.rate(done)
        self._lessons.journal.note(
            step=step, loss=loss, tokens_per_second=speed, learning_rate=rate,
            elapsed=self._progress.elapsed,
        )  # fmt: skip
        self._lessons.journal.say(
            f"step {step} ({100 * done:.0f} %): loss {loss:.4f}, {speed:,.0f} tokens/s, "
            f"{left / 60:.1f} min left"
        )
        self._since, self._told = [], time.monotonic()

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
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS)


def _parts(chosen: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Stretches of at most so many; 0 is all."""
    size = most or len(chosen)
    for first in range(0, len(chosen), size):
        yield chosen[first : first + size]
