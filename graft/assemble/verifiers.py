"""Verifiers by name, and the chains that they need."""

from graft.draft.models.chains import Chains
from graft.verify.chain import rejection
from graft.verify.rapid import Shift, rapid, rapid_phat
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

GAMMA = 10  # RAPID's


def make_verifier(name: str, shift: Shift) -> Verifier:
    """The verifier of this name."""
    made: dict[str, Verifier] = {
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
