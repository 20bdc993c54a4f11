"""Verifiers by name, and the chains that they need."""

from graft.assemble.presets import SAMPLED_PRESETS
from graft.draft.models.chains import Chains
from graft.errors import InputError
from graft.verify.rapid import Shift, rapid, rapid_phat
from graft.verify.rejection import rejection
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

# The output distribution at a drafted position, for the target's p and the drafter's q; phat: Shift
VERIFIERS: dict[str, str] = {
    "walk": "p, sampled with the same noise as plain decoding: the same text",
    "rejection": "p: min(p, q) + (1 - sum min(p, q)) norm(max(p - q, 0))",
    "rapid": "min(q, phat) + (1 - sum min(q, phat)) norm(max(p - phat, p - q, 0))",
    "rapid-phat": "phat: min(q, phat) + (1 - sum min(q, phat)) norm(max(phat - q, 0))",
}
GAMMA = 10  # RAPID's


def check_verifier(name: str, draft: str) -> None:
    """Raise InputError for an unknown verifier, or one that cannot verify such drafts."""
    if name not in VERIFIERS:
        raise InputError(f"unknown verifier {name!r}; choose one of {', '.join(VERIFIERS)}")
    if name.startswith("rapid") and draft not in SAMPLED_PRESETS:
        chains = ", ".join(SAMPLED_PRESETS)
        raise InputError(
            f"verifier {name!r} needs a chain sampled by a model, and draft {draft!r} is not one; "
            f"choose one of {chains} (--draft)"
        )


def make_verifier(name: str, shift: Shift) -> Verifier:
    """The verifier of this name."""
    made = {
        "walk": walk,
        "rejection": rejection,
        "rapid": rapid(shift),
        "rapid-phat": rapid_phat(shift),
    }
    return made[name]


def chains_for(verifier: str, gamma: int | None, confidence: float) -> Chains:
    """The chains for a verifier. RAPID's shift the distribution, so their length must not depend
    on measured costs."""
    if gamma is None and verifier.startswith("rapid"):
        gamma = GAMMA
    return Chains(gamma, confidence, sampled=verifier != "walk")
