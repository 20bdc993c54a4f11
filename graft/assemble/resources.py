"""The models, heads and options that an engine's drafters are made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graft.assemble.presets import RETRIEVING, SELF_PRESETS, presets_with
from graft.draft.combined import Guide
from graft.draft.heads.head import DraftHead
from graft.draft.models.chains import Chains
from graft.draft.models.model import DraftModel
from graft.draft.short_context.short_prompt import Shorten
from graft.models.heads.config import KINDS


@dataclass(frozen=True, slots=True)
class DraftResources:
    """A draft model, heads by kind (the preferred one first), the target itself, what shortens
    prompts, and the options of chains. `clock` times steps; None where counts must not depend on
    the machine. `ready` are existing drafters that replace a network's, by preset."""

    model: DraftModel | None = None
    heads: Mapping[str, DraftHead] = field(default_factory=dict)
    target: DraftModel | None = None
    shorten: Shorten | None = None
    chains: Chains = Chains()
    clock: Callable[[], float] | None = None
    ready: Mapping[str, Guide] = field(default_factory=dict)

    @property
    def head(self) -> DraftHead | None:
        """The preferred head."""
        return next(iter(self.heads.values()), None)

    @property
    def presets(self) -> dict[str, str]:
        """The presets that can be made from these resources, with descriptions."""
        known = presets_with(draft_model=self.model is not None, head=bool(self.heads))
        missing = {kind for kind in KINDS if kind not in self.heads}
        if not self.shorten:
            missing.update(RETRIEVING)
        if not self.target:
            missing.update(SELF_PRESETS, {"triforce-head"})
        return {name: text for name, text in known.items() if name not in missing}
