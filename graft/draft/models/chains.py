"""Options of draft models' chains, shared by all presets."""

from dataclasses import dataclass

from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import DraftModel, ModelDrafter
from graft.draft.options import check_confidence
from graft.errors import InputError

MAX_DEPTH = 8  # of a chain whose depth the cost model chooses
MAX_GAMMA = 64
RAPID_GAMMA = 10  # of the paper


@dataclass(frozen=True, slots=True)
class Chains:
    """Length and kind of chains: `gamma` tokens, None for a depth chosen by the cost model. A chain
    ends early at a token with a probability below `confidence`. Verifiers that need q get chains
    `sampled` from the draft model's own distributions."""

    gamma: int | None = None
    confidence: float = 0.0
    sampled: bool = False

    def __post_init__(self) -> None:
        if self.gamma is not None and not 1 <= self.gamma <= MAX_GAMMA:
            raise InputError(f"gamma must be between 1 and {MAX_GAMMA}, not {self.gamma}")
        check_confidence(self.confidence)

    def drafter(self, draft_model: DraftModel, *, min_gain: float = 0.0) -> ModelDrafter:
        """A drafter with such chains; see ModelDrafter for `min_gain`."""
        growth = ChainGrowth(self.gamma or MAX_DEPTH, self.confidence, self.sampled)
        fixed = self.gamma is not None
        return ModelDrafter(
            draft_model,
            growth,
            nodes=growth.depth,
            adaptive=not fixed,
            min_gain=min_gain,
            prefill_at_once=self.sampled and fixed,
        )
