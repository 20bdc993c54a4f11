"""What drafters are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from graft.assemble.presets import POOL_PRESETS, RETRIEVING, SELF_PRESETS, Preset, presets_with
from graft.draft.combined import Guide, Rasd
from graft.draft.heads.head import DraftHead
from graft.draft.models.chains import Chains
from graft.draft.models.model import DraftModel
from graft.draft.short_context.short_prompt import Shorten
from graft.match.pool import Pools
from graft.models.heads.config import KINDS

Resource = TypeVar("Resource")


def required(resource: Resource | None) -> Resource:
    """A resource that is there: `make_drafter` has checked it."""
    assert resource is not None
    return resource


@dataclass(frozen=True, slots=True)
class DraftResources:
    """What presets are made of: a draft model, heads by kind (the first is the default), the
    target, a function that shortens prompts, the options of chains and of RASD, and the pools of
    earlier answers. `clock` times
    steps; None where counts must not depend on the machine. `ready` are finished drafters by
    preset."""

    model: DraftModel | None = None
    heads: Mapping[str, DraftHead] = field(default_factory=dict)
    target: DraftModel | None = None
    shorten: Shorten | None = None
    chains: Chains = Chains()
    clock: Callable[[], float] | None = None
    ready: Mapping[str, Guide] = field(default_factory=dict)
    rasd: Rasd = Rasd()
    pools: Pools | None = None

    @property
    def head(self) -> DraftHead | None:
        """The default head."""
        return next(iter(self.heads.values()), None)

    @property
    def presets(self) -> dict[str, Preset]:
        """The presets that these resources allow."""
        known = presets_with(draft_model=self.model is not None, head=bool(self.heads))
        return {name: preset for name, preset in known.items() if not self.missing(name)}

    def missing(self, preset: str) -> str | None:
        """What a preset needs and these resources do not have."""
        if preset in KINDS and preset not in self.heads:
            return f"a head of that kind; the one here is {', '.join(self.heads)}"
        if preset in POOL_PRESETS and self.pools is None:
            return "a pool; enable it (--pool)"
        if preset in RETRIEVING and not self.shorten:
            return "a model with a tokenizer"
        if preset in {*SELF_PRESETS, "triforce-head"} and self.target is None:
            return "the target itself; use its engine"
        return None
