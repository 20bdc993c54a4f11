"""Verifiers by their names, and the chains that suit them."""

from graft.draft.models.chains import Chains
from graft.verify.rapid import Shift, rapid, rapid_phat
from graft.verify.rejection import rejection
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

GAMMA = 10  # of RAPID's


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
