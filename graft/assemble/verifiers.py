"""Verifiers by their names, and the chains that suit them."""

from graft.assemble.presets import SAMPLED_PRESETS
from graft.draft.models.chains import Chains
from graft.errors import InputError
from graft.verify.rapid import Shift, rapid, rapid_phat
from graft.verify.rejection import rejection
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

# What comes out at a drafted position, for the target's p and the drafter's q; phat: see Shift
VERIFIERS: dict[str, str] = {
    "walk": "p, drawn with plain decoding's own noise: the same text",
    "rejection": "p: min(p, q) + (1 - sum min(p, q)) norm(max(p - q, 0))",
    "rapid": "min(q, phat) + (1 - sum min(q, phat)) norm(max(p - phat, p - q, 0))",
    "rapid-phat": "phat: min(q, phat) + (1 - sum min(q, phat)) norm(max(phat - q, 0))",
}
GAMMA = 10  # of RAPID's


def check_verifier(name: str, draft: str) -> None:
    """Refuse an unknown verifier, and one that would have nothing to do with such drafts."""
    if name not in VERIFIERS:
        raise InputError(f"unknown verifier {name!r}; choose one of {', '.join(VERIFIERS)}")
    if name.startswith("rapid") and draft not in SAMPLED_PRESETS:
        chains = ", ".join(SAMPLED_PRESETS)
        raise InputError(
            f"verifier {name!r} weighs a chain that a model drew, and draft {draft!r} is none; "
            f"choose one of {chains} (--draft)"
        )


def make_verifier(name: str, shift: Shift) -> Verifier:
    """A verifier by its name."""
    made = {
        "walk": walk,
        "rejection": rejection,
        "rapid": rapid(shift),
        "rapid-phat": rapid_phat(shift),
    }
    return made[name]


def chains_for(verifier: str, gamma: int | None, confidence: float) -> Chains:
    """Who asks for a shifted target wants it at every token: its chains do not depend on what
    pays."""
    if gamma is None and verifier.startswith("rapid"):
        gamma = GAMMA
    return Chains(gamma, confidence, sampled=verifier != "walk")
