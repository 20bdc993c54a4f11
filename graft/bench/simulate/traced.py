"""A network's drafts, replayed without the network.

`Traced` proposes the trees that `python -m benchmarks trace` recorded before every token of a
plainly decoded answer. A drafter with a fixed shape is replayed exactly, because its draft depends
on the text alone. An adaptive drafter is recorded as if nodes cost nothing, then pruned.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import Choose, best_of
from graft.errors import InputError
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, root_only

Trace = Sequence[DraftTree]  # [i]: the tree after the answer's first i + 1 tokens


def key_of(prompt: Sequence[int]) -> Hashable:
    """The key of a prompt's trace."""
    return tuple(prompt)


class Traced:
    """Proposes recorded trees, pruned by `choose`; a draft takes `share` of a plain step's time,
    which `spend` adds to a simulated clock."""

    def __init__(
        self,
        traces: Mapping[Hashable, Trace],
        choose: Choose,
        *,
        share: float = 0.0,
        spend: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._traces, self._choose = traces, choose
        self._share, self._spend = share, spend
        self._replayed: dict[int, Trace] = {}
        self._first_tokens: dict[int, list[int]] = {}

    def start(self, context: DraftContext) -> None:
        """See Drafter."""
        trace = self._traces.get(key_of(context.prompt))
        if trace is None:
            raise InputError("the traces are from other prompts; trace this result file")
        self._replayed[context.sequence] = trace

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees = [self._tree(context) for context in contexts]
        self._spend(self._share * float(budget.seconds[0]))
        for context, tree in zip(contexts, trees, strict=True):
            self._first_tokens[context.sequence] = tree.tokens[tree.parents == 0].tolist()
        return best_of(trees, self._choose, budget)

    def first_tokens(self, sequence: int) -> list[int]:
        """The root's children in the last draft, before pruning."""
        return self._first_tokens[sequence]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._replayed.pop(sequence, None)
        self._first_tokens.pop(sequence, None)

    def _tree(self, context: DraftContext) -> DraftTree:
        trace, position = self._replayed[context.sequence], len(context.tokens) - 1
        if position >= len(trace):
            return root_only(context.root)
        if trace[position].tokens[0] != context.root:
            raise InputError("the traces are from other answers; trace this result file")
        return trace[position]
