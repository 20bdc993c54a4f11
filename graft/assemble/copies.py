"""Presets that only look up what followed before: in the text at hand, or in a datastore."""

from collections.abc import Callable

from graft.draft.copies.calibration import STORE_PRIOR
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Drafter, NoDraft
from graft.draft.pacing.budget import as_many_as_fit, as_many_as_pay
from graft.match.matches import TokenIndex
from graft.match.ngram import CopyIndex, NgramCounts, NgramIndex
from graft.match.rest import RestIndex
from graft.match.suffix_array import Store
from graft.match.suffix_automaton import SuffixAutomaton

Makers = dict[str, Callable[[], Drafter]]  # presets by name
INDEXES = (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts)
PAYING_NODES = 48  # at most, where as many are taken as pay
COPIED = 20  # nodes of CASD's copier: two branches of ten


def lookups() -> Makers:
    """Copies from the text at hand, with the papers' numbers."""
    return {
        "plain": NoDraft,
        "pld": lambda: _all_of(NgramIndex, 10),
        "copy": lambda: _all_of(CopyIndex, COPIED),
        "igpg": lambda: _all_of(NgramCounts, 7),
    }


def paying_copies() -> LookupDrafter:
    """Copies of any length from the text at hand, as many as pay."""
    return LookupDrafter(SuffixAutomaton, as_many_as_pay, nodes=PAYING_NODES, calibrated=True)


def rasd_copies() -> LookupDrafter:
    """RASD over prompt lookup: up to four places, five tokens of match, eight of continuation."""
    return _all_of(lambda: CopyIndex(max_match=5, min_match=2, branches=4, length=8), 32)


def stored(store: Store) -> LookupDrafter:
    """What followed in a datastore, as many as pay."""
    return LookupDrafter(
        store.index, as_many_as_pay, nodes=PAYING_NODES, calibrated=True, prior=STORE_PRIOR
    )


def rest(store: Store) -> LookupDrafter:
    """The same by REST's choice."""
    return _all_of(lambda: RestIndex(store), 64)


def _all_of(index: Callable[[], TokenIndex], nodes: int) -> LookupDrafter:
    """Everything that is found, up to a paper's number of nodes."""
    return LookupDrafter(index, as_many_as_fit, nodes=nodes, calibrated=False)
