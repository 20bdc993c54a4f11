"""The decoding loop: schedule, draft, score, verify, commit, observe."""

import logging
from collections.abc import Callable

from graft.decode.in_flight import InFlightStep, score_parts, step_parts
from graft.decode.run_ahead import run_ahead
from graft.decode.scheduler import Scheduler, seconds_by_nodes
from graft.decode.sequence import Sequence
from graft.decode.stats import clock
from graft.decode.step_lock import Outcome, StepLock
from graft.draft.drafter import Budget, by_drafter, updates_async
from graft.models.language_model import LanguageModel
from graft.models.step_costs import StepCosts
from graft.tree.draft_tree import DraftTree, root_only
from graft.tree.prune import cut
from graft.verify.verdict import Verifier

log = logging.getLogger(__name__)
# Of one tree, root excluded: with it a block of 64 rows, beyond which a GPU's step takes half as
# long again. EAGLE-2's tree has 59; retrieved nodes take the place of its least likely ones.
MAX_NODES = 63


class DecodeLoop:
    """Generates tokens for all requests of an engine, one target forward per step.

    The thread that holds `lock` makes the step; see StepLock.
    """

    def __init__(
        self, model: LanguageModel, verify: Verifier, costs: StepCosts, *, max_batch: int
    ) -> None:
        self.model, self.costs, self._verify = model, costs, verify
        self.scheduler = Scheduler(model, max_batch=max_batch, spare_rows=MAX_NODES + 1)
        self.lock = StepLock()
        self._in_flight: InFlightStep | None = None

    def step(self) -> None:
        """One target forward: a draft tree per decoding sequence, and chunks of queued prompts.

        An asynchronous device gets the next step before texts and events of this one are made, and
        a step without drafts even before this one's tokens are known. The first token of a
        streamed answer is emitted first: it does not wait for drafting.
        """
        current = self._in_flight or self.launch()
        self._in_flight = None
        if current:
            launch_ahead = self.model.asynchronous and not current.yields_first_token
            ahead = run_ahead(current, self.scheduler, self.model) if launch_ahead else None
            if ahead:
                self._update_async([part.sequence for part in ahead.parts])
            try:
                current.complete(self.model, self._verify)
                if ahead:
                    ahead.fill_roots()
                elif launch_ahead:
                    ahead = self.launch()
                self._in_flight = ahead
            finally:
                current.emit()
            current.record_time(until=self._in_flight.since if self._in_flight else clock())
        self.collect_finished()

    def launch(self) -> InFlightStep | None:
        """Schedule, draft and score a step; None if there is nothing to do."""
        since = clock()
        chunks, decoding = self.scheduler.schedule(self.costs)
        trees = self._draft(decoding, prefill=sum(len(chunk) for _, chunk in chunks))
        # Prepared rows may run forwards, after which the drafters' features are gone: so after.
        chunks = self.scheduler.insert_prepared_rows(chunks)
        if not chunks and not decoding:
            return None
        in_flight = score_parts(self.model, step_parts(chunks, decoding, trees), since)
        for sequence, _ in chunks:  # drafters index the prompt while the device prefills it
            with sequence.guard():
                sequence.start_drafter()
        self._update_async(decoding)
        return in_flight

    def _draft(self, decoding: list[Sequence], *, prefill: int) -> list[DraftTree]:
        """A draft tree for each sequence; each drafter knows the cost of the step so far."""
        trees = [root_only(sequence.context.root) for sequence in decoding]
        rows = prefill + len(decoding)
        most = min(MAX_NODES, self.model.max_nodes(len(decoding)))
        for drafter, mine in by_drafter(decoding, lambda each: each.drafter):
            seconds = seconds_by_nodes(
                self.costs, decoding, rows=rows, prefill=prefill, nodes=most * len(mine)
            )
            contexts = [decoding[i].context for i in mine]
            nodes = max(context.max_tokens(most) for context in contexts)
            budget = Budget(nodes, seconds, base_tokens=len(decoding), prefills=prefill > 0)
            try:
                proposed = drafter.propose(contexts, budget)
            except Exception as error:  # fails its own sequences, not those of other drafters
                _fail(error, [decoding[i] for i in mine])
                continue
            for i, tree in zip(mine, proposed, strict=True):
                trees[i] = decoding[i].limit(cut(tree, most))
                rows += len(trees[i]) - 1
        return trees

    def _update_async(self, decoding: list[Sequence]) -> None:
        """Let drafters do deferred work while the device computes."""
        for drafter, mine in by_drafter(decoding, lambda each: each.drafter):
            if updates_async(drafter):
                try:
                    drafter.update_async()
                except Exception as error:
                    _fail(error, [decoding[i] for i in mine])

    def collect_finished(self) -> None:
        """Free the rows of finished sequences; drop a step in flight that only they were in."""
        if self._in_flight and not self._in_flight.needed:
            self._in_flight = None
        self.scheduler.collect_finished()

    def exclusive(self, action: Callable[[], Outcome]) -> Outcome:
        """Run `action` between two steps; a step in flight is dropped and launched again later."""

        def alone() -> Outcome:
            self._in_flight = None
            return action()

        return self.lock.exclusive(alone)


def _fail(error: Exception, sequences: list[Sequence]) -> None:
    """A drafter failed: so do the requests it drafts for."""
    log.error("a drafter failed", exc_info=error)
    for sequence in sequences:
        sequence.error = error
