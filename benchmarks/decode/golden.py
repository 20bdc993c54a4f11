"""How likely the right answer is, where small models answer badly: log p of gold after a prompt.

Asked once of every prompt at every context, and once more where retrieval shortened it. It does not
depend on who drafts, so the first system that reads a prompt so is asked.
"""

from dataclasses import dataclass

from graft.bench.encode import Workload
from graft.bench.plan import Turn
from graft.bench.records import Likelihood, Reading, Results
from graft.bench.settings import Settings
from graft.bench.task import Gold

# how suites ask for these answers
SAID = {
    "choice": "The correct answer is ({})",
    "letters": "Answer: {}",
    "boxed": "\\boxed{{{}}}",
}


@dataclass(frozen=True, slots=True)
class Weighing:
    """One likelihood to ask for."""

    turn: Turn
    gold: list[int]

    def likelihood(self, log_likelihood: float) -> Likelihood:
        """As it is written down."""
        shortened = self.turn.system.shortens
        [number] = self.turn.numbers
        return Likelihood(number, self.turn.context, shortened, len(self.gold), log_likelihood)


@dataclass(frozen=True, slots=True)
class Golden:
    """The likelihoods of a run."""

    settings: Settings
    workload: Workload
    results: Results

    def left(self, turns: list[Turn]) -> list[Weighing]:
        """Those of a run's turns that do not stand in the file."""
        if self.settings.quality != "likelihood":
            return []
        found: dict[Reading, Weighing] = {}
        for turn in turns:
            for each in turn.prompts if turn.system.engine == "graft" else ():
                key = each.prompt.number, turn.context, turn.system.shortens
                if each.prompt.gold and key not in self.results.likelihoods:
                    alone = Turn(turn.system, (each,), 0.0, 0, turn.context)
                    found.setdefault(key, Weighing(alone, self._tokens(each.prompt.gold)))
        return list(found.values())

    def _tokens(self, gold: Gold) -> list[int]:
        """The first reference, no longer than an answer may be: the prompt leaves room for that."""
        said = SAID.get(gold.kind, "{}").format(gold.references[0])
        return self.workload.cutter.gold(said)[: self.settings.max_tokens]
