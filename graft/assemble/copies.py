"""Presets that look up continuations, in the request's own text or in a datastore."""

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
MAX_NODES = 48  # at most, where the measured step cost limits them
COPIED = 20  # nodes of CASD's copier: two branches of ten


def lookups() -> Makers:
    """Copies from the request's own text, with the papers' numbers."""
    return {
        "plain": NoDraft,
        "pld": lambda: _all_of(NgramIndex, 10),
        "copy": lambda: _all_of(CopyIndex, COPIED),
        "igpg": lambda: _all_of(NgramCounts, 7),
    }


def adaptive_copies() -> LookupDrafter:
    """Copies of any length from the request's own text, limited by the measured step cost."""
    return LookupDrafter(SuffixAutomaton, as_many_as_pay, nodes=MAX_NODES, calibrated=True)


def rasd_copies() -> LookupDrafter:
    """RASD over prompt lookup: up to four places, five tokens of match, eight of continuation."""
    return _all_of(lambda: CopyIndex(max_match=5, min_match=2, branches=4, length=8), 32)


def stored(store: Store) -> LookupDrafter:
    """Copies from a datastore, limited by the measured step cost."""
    return LookupDrafter(
        store.index, as_many_as_pay, nodes=MAX_NODES, calibrated=True, prior=STORE_PRIOR
    )


def rest(store: Store) -> LookupDrafter:
    """Copies from a datastore, chosen by REST's rule."""
    return _all_of(lambda: RestIndex(store), 64)


def _all_of(index: Callable[[], TokenIndex], nodes: int) -> LookupDrafter:
    """All matches up to a paper's number of nodes."""
    return LookupDrafter(index, as_many_as_fit, nodes=nodes, calibrated=False)
