"""Select passages: rank them, and take the best that fit a budget."""

from collections.abc import Callable, Sequence

import numpy as np

from graft.retrieval.passage import Passage

MAX_MISFITS = 16  # passages in a row that do not fit: the budget is used up


def ranking(passages: Sequence[Passage], scores: np.ndarray) -> list[int]:
    """Numbers of passages, best first: those with a score, then their neighbours.

    Without any score: the first passages of all documents, then the second ones, and so on. Of
    passages with the same text only the first is ranked.
    """
    order = np.argsort(-scores, kind="stable")
    hits = order[: int(np.count_nonzero(scores > 0))].tolist()
    if not hits:
        return _distinct(passages, _leads(passages))
    beside = (
        number
        for hit in hits
        for number in (hit + 1, hit - 1)
        if 0 <= number < len(passages) and _adjoin(passages[number], passages[hit])
    )
    return _distinct(passages, [*hits, *beside])


def fill(ranked: Sequence[int], size: Callable[[int], int], budget: int) -> list[int]:
    """The ranked passages that fit the budget; `size` is called for few of them."""
    taken, misfits = [], 0
    for number in ranked:
        needed = size(number)
        if needed <= budget:
            taken.append(number)
            budget -= needed
            misfits = 0
        else:
            misfits += 1
            if misfits == MAX_MISFITS:
                break
    return taken


def _distinct(passages: Sequence[Passage], ranked: Sequence[int]) -> list[int]:
    first: dict[str, int] = {}
    for number in ranked:
        first.setdefault(passages[number].text.strip(), number)
    return list(first.values())


def _adjoin(one: Passage, other: Passage) -> bool:
    together = one.end == other.start or other.end == one.start
    return together and one.document == other.document


def _leads(passages: Sequence[Passage]) -> list[int]:
    """First passages of all documents, then second ones, and so on."""
    depths: list[int] = []
    for passage in passages:
        depths.append(0 if passage.start == 0 else depths[-1] + 1)
    return sorted(range(len(passages)), key=depths.__getitem__)
