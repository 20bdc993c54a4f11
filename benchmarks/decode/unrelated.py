"""Retrieval from another document (RAPID's table 3: how much of a bad draft a shift accepts).

`PRESET-unrelated`, such as `rapid-unrelated@rapid:20`, drafts from passages of the next prompt's
document, of equal documents the next different one. The question stays the prompt's own: it ranks
the passages of the other document.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.decode.cut import with_document
from graft.assemble.drafters import Drafters, make_drafter
from graft.assemble.presets import retrieves
from graft.draft.drafter import Drafter
from graft.draft.short_context.short_prompt import Shorten
from graft.errors import InputError

if TYPE_CHECKING:
    from benchmarks.decode.encode import Encoded, Workload

SUFFIX = "-unrelated"


def related(method: str) -> str:
    """The preset of PRESET-unrelated; other methods as they are. InputError where the preset does
    not retrieve passages."""
    preset = method.removesuffix(SUFFIX)
    if preset != method and ("+" in preset or not retrieves(preset)):
        raise InputError(f"{method!r}: {preset!r} does not retrieve passages; take rapid")
    return preset


def unrelated_drafter(name: str, drafters: Drafters, workload: "Workload") -> Drafter:
    """The drafter of PRESET-unrelated for the prompts of a run."""
    resources = drafters.resources
    assert resources.shorten is not None, "the preset needs it too"
    shorten = UnrelatedPassages(resources.shorten, workload)
    return make_drafter(related(name), replace(resources, shorten=shorten), drafters.store)


class UnrelatedPassages:
    """See Shorten: a prompt's question with passages of another prompt's document."""

    def __init__(self, shorten: Shorten, workload: "Workload") -> None:
        self._shorten, self._cutter = shorten, workload.cutter
        self._other = {
            tuple(each.token_ids): (each, _next_document(cell, place))
            for cell in workload.prompts.values()
            for place, each in enumerate(cell)
        }

    def __call__(
        self,
        tokens: Sequence[int],
        quotable: Sequence[tuple[int, int]],
        budget: int | str | None = None,
    ) -> list[int] | None:
        """None where the other document is too short for this budget."""
        if not tokens:
            return self._shorten(tokens, quotable, budget)  # loads the retriever
        each, document = self._other[tuple(tokens)]
        own = replace(each.prompt, planted=())
        swapped = replace(own, content=with_document(own, document), document=document)
        found = self._cutter.fit(swapped, len(tokens))
        return self._shorten(found, [(0, len(found))], budget) if found else None


def _next_document(cell: "Sequence[Encoded]", place: int) -> str:
    """The document of the next prompt that has another one than the prompt at `place`."""
    own = cell[place].prompt.document
    for each in (*cell[place + 1 :], *cell[:place]):
        if each.prompt.document and each.prompt.document != own:
            return each.prompt.document
    raise InputError(f"{SUFFIX} needs prompts with at least two documents; take more (--limit)")
