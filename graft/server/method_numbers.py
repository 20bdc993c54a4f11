"""A request's own numbers of its method: the fields of `speculative` that have a flag of the same
name (docs/guide.md). A field that is not sent has the server's value."""

from dataclasses import replace
from typing import Any

from graft.assemble.presets import SAMPLED_PRESETS
from graft.assemble.resources import DraftResources
from graft.server.errors import ApiError
from graft.server.schema import Speculative
from graft.verify.rapid import Shift

SHIFT = ("eta", "tail", "margin")


def method_numbers(
    chosen: Speculative, draft: str, resources: DraftResources, shift: Shift | None
) -> dict[str, Any]:
    """Fields of a Request with this draft; `resources` and `shift` are the server's. ApiError for a
    shift that the draft or the server's verifier cannot use."""
    if chosen.disabled:
        return {}
    rasd, casd = _given(chosen, prefix="rasd_"), _given(chosen, prefix="casd_")
    return {
        "draft_tokens": chosen.num_tokens,
        "confidence": chosen.confidence,
        "retrieved": chosen.retrieved,
        "rasd": replace(resources.rasd, **rasd) if rasd else None,
        "casd": replace(resources.casd, **casd) if casd else None,
        "shift": _shift(chosen, draft, shift),
    }


def _shift(chosen: Speculative, draft: str, shift: Shift | None) -> Shift | None:
    given = {name: value for name, value in _given(chosen).items() if name in SHIFT}
    for name in given:
        needs = None
        if shift is None:
            needs = "a server with --verifier rapid or rapid-phat"
        elif draft not in SAMPLED_PRESETS:
            needs = f"a method of {', '.join(SAMPLED_PRESETS)}, and no corpora to draft from"
        if needs:
            raise ApiError(f"{name} needs {needs}", param=f"speculative.{name}")
    return replace(shift, **given) if shift and given else None


def _given(chosen: Speculative, prefix: str = "") -> dict[str, Any]:
    """The fields that were sent, those with a prefix without it."""
    sent = chosen.model_dump(exclude_none=True)
    return {
        name.removeprefix(prefix): value for name, value in sent.items() if name.startswith(prefix)
    }
