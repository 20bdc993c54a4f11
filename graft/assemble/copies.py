"""Makers of lookup drafters: continuations copied from the text at hand or from a datastore."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from graft.assemble.resources import DraftResources, required
from graft.draft.copies.calibration import STORE_PRIOR
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.copies.pooled import CopiesAndPool, pool_lookups
from graft.draft.copies.texts import TextSpan, given_spans, text_spans
from graft.draft.drafter import DraftContext, NoDraft
from graft.draft.options import MAX_COPIED, Casd, Rasd
from graft.draft.pacing.budget import best_by_cost, up_to_limit
from graft.match.copy_index import CopyIndex
from graft.match.matches import TokenIndex
from graft.match.ngram import NgramCounts, NgramIndex
from graft.match.pool import PoolIndex
from graft.match.rest import RestIndex
from graft.match.suffix_array import Store
from graft.match.suffix_automaton import SuffixAutomaton

INDEXES = (SuffixAutomaton, NgramIndex, CopyIndex, NgramCounts, PoolIndex)
Numbers = TypeVar("Numbers", Casd, Rasd)
MAX_NODES = 48  # maximum where the step cost limits the nodes


def plain(_: DraftResources) -> NoDraft:
    """No drafting: one token per step."""
    return NoDraft()


def pld(_: DraftResources) -> LookupDrafter:
    """Prompt lookup decoding: 3-grams, 10 tokens (Saxena 2023)."""
    return _all_of(lambda _: NgramIndex(), 10)


def copy(resources: DraftResources, *, output: bool = True) -> LookupDrafter:
    """CASD's copier: the two longest matches up to 10 tokens, 10 tokens each; without `output` it
    copies from prompt and documents only."""
    return casd_copies(resources.casd, text_spans if output else given_spans)


def casd_copies(
    casd: Casd, spans: Callable[[DraftContext], list[TextSpan]] = text_spans
) -> LookupDrafter:
    """The same with these numbers."""

    def make(casd: Casd) -> CopyIndex:
        return CopyIndex(branches=casd.matches, length=casd.length)

    return _all_of(_IndexMaker("casd", casd, make), MAX_COPIED, spans=spans)


def igpg(_: DraftResources) -> LookupDrafter:
    """IDR2's n-gram drafting: 5-grams with back-off, 7 tokens."""
    return _all_of(lambda _: NgramCounts(), 7)


def adaptive_copies() -> LookupDrafter:
    """Copies of any length from the text at hand, limited by the measured step cost."""
    return LookupDrafter(
        lambda _: SuffixAutomaton(), best_by_cost, nodes=MAX_NODES, calibrated=True
    )


def pooled(resources: DraftResources) -> LookupDrafter:
    """Continuations from earlier answers to requests of the same key, limited by the measured step
    cost."""
    return pool_lookups(required(resources.pools), MAX_NODES)


def lookups(resources: DraftResources) -> LookupDrafter | CopiesAndPool:
    """Copies from the text at hand and, where these are uncertain, from the pool."""
    if resources.pools is None:
        return adaptive_copies()
    return CopiesAndPool(adaptive_copies(), pooled(resources))


def rasd_copies(rasd: Rasd) -> LookupDrafter:
    """RASD's prompt lookup, with matches of two to five tokens."""

    def make(rasd: Rasd) -> CopyIndex:
        return CopyIndex(max_match=5, min_match=2, branches=rasd.branches, length=rasd.length)

    return _all_of(_IndexMaker("rasd", rasd, make), MAX_COPIED)


def rasd_stored(rasd: Rasd, store: Store) -> LookupDrafter:
    """RASD's retrieval from a datastore: REST's with another length."""

    def make(rasd: Rasd) -> RestIndex:
        return RestIndex(store, length=rasd.length, nodes=rasd.nodes)

    return _all_of(_IndexMaker("rasd", rasd, make), MAX_COPIED)


def stored(_: DraftResources, store: Store) -> LookupDrafter:
    """Continuations from a datastore, limited by the measured step cost."""
    return LookupDrafter(
        lambda _: store.index(), best_by_cost, nodes=MAX_NODES, calibrated=True, prior=STORE_PRIOR
    )


def rest(_: DraftResources, store: Store) -> LookupDrafter:
    """The same by REST's rule: 5,000 places, 10 tokens, 64 prefixes (He et al. 2023)."""
    return _all_of(lambda _: RestIndex(store), 64)


def _all_of(
    index: Callable[[DraftContext], TokenIndex],
    nodes: int,
    *,
    spans: Callable[[DraftContext], list[TextSpan]] = text_spans,
) -> LookupDrafter:
    """All matches, up to the paper's number of nodes."""
    return LookupDrafter(index, up_to_limit, nodes=nodes, calibrated=False, spans=spans)


@dataclass(frozen=True, slots=True)
class _IndexMaker(Generic[Numbers]):
    """Makes an index with a request's own numbers of a method, or with the engine's."""

    option: str  # the field of DraftOptions
    default: Numbers
    make: Callable[[Numbers], TokenIndex]

    @property
    def options(self) -> frozenset[str]:
        """See TakesOptions."""
        return frozenset({self.option})

    def __call__(self, context: DraftContext) -> TokenIndex:
        return self.make(getattr(context.options, self.option) or self.default)
