"""How draft models' chains grow, as one choice for all presets."""

from dataclasses import dataclass

from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import DraftModel, ModelDrafter
from graft.errors import InputError

DEPTH = 8  # of a chain that is as deep as pays
MOST = 64


@dataclass(frozen=True, slots=True)
class Chains:
    """How draft models' chains grow: `gamma` tokens, None for as many as pay, fewer where one gets
    less than `confidence`; `sampled` from their own distributions for the rules that want q."""

    gamma: int | None = None
    confidence: float = 0.0
    sampled: bool = False

    def __post_init__(self) -> None:
        if self.gamma is not None and not 1 <= self.gamma <= MOST:
            raise InputError(f"gamma must be between 1 and {MOST}, not {self.gamma}")
        if not 0 <= self.confidence <= 1:
            raise InputError(f"confidence must be between 0 and 1, not {self.confidence}")

    def drafter(self, helper: DraftModel, *, reward: float = 0.0) -> ModelDrafter:
        """A draft model with such chains."""
        growth = ChainGrowth(self.gamma or DEPTH, self.confidence, self.sampled)
        fixed = self.gamma is not None
        return ModelDrafter(
            helper,
            growth,
            nodes=growth.depth,
            adaptive=not fixed,
            reward=reward,
            at_once=self.sampled and fixed,
        )
