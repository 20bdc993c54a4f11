"""Checks of options by name that need no model; importing this file does not import torch."""

from graft.assemble.presets import SAMPLED_PRESETS
from graft.errors import InputError

# The distribution of a drafted position, for the target's p and the drafter's q; phat: see Shift
VERIFIERS: dict[str, str] = {
    "walk": "p, sampled with plain decoding's own noise: the same text",
    "rejection": "p: min(p, q) + (1 - sum min(p, q)) norm(max(p - q, 0))",
    "rapid": "min(q, phat) + (1 - sum min(q, phat)) norm(max(p - phat, p - q, 0))",
    "rapid-phat": "phat: min(q, phat) + (1 - sum min(q, phat)) norm(max(phat - q, 0))",
}


def check_verifier(name: str, draft: str) -> None:
    """Raise InputError for an unknown verifier, and for one that cannot use this draft."""
    if name not in VERIFIERS:
        raise InputError(f"unknown verifier {name!r}; choose one of {', '.join(VERIFIERS)}")
    if name.startswith("rapid") and draft not in SAMPLED_PRESETS:
        raise InputError(
            f"verifier {name!r} needs a chain sampled from a model, and draft {draft!r} is not "
            f"one; choose one of {', '.join(SAMPLED_PRESETS)} (--draft)"
        )
