"""What drafters are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from graft.assemble.presets import (
    HEAD,
    MODEL,
    MTP,
    NETWORK,
    POOL,
    PRESETS,
    TARGET,
    TOKENIZER,
    check_needs,
)
from graft.draft.combined import Guide
from graft.draft.heads.head import DraftHead
from graft.draft.models.chains import Chains
from graft.draft.models.model import DraftModel
from graft.draft.options import Casd, Rasd
from graft.draft.short_context.short_prompt import Shorten
from graft.errors import InputError
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
    target, a function that shortens prompts, the options of chains, RASD and CASD, and the pools of
    earlier answers. `clock` times steps; None where counts must not depend on the machine. `ready`
    are finished drafters by preset."""

    model: DraftModel | None = None
    heads: Mapping[str, DraftHead] = field(default_factory=dict)
    target: DraftModel | None = None
    shorten: Shorten | None = None
    chains: Chains = Chains()
    clock: Callable[[], float] | None = None
    ready: Mapping[str, Guide] = field(default_factory=dict)
    rasd: Rasd = Rasd()
    casd: Casd = Casd()
    pools: Pools | None = None

    @property
    def head(self) -> DraftHead | None:
        """The default head."""
        return next(iter(self.heads.values()), None)

    @property
    def given(self) -> set[str]:
        """The needs of presets that are met."""
        guided = bool(self.heads or self.ready)
        met = {
            POOL: self.pools is not None,
            TOKENIZER: self.shorten is not None,
            TARGET: self.target is not None,
            MODEL: self.model is not None,
            HEAD: guided,
            MTP: MTP in self.heads,
            NETWORK: guided or self.model is not None,
        }
        return {need for need, there in met.items() if there}

    @property
    def presets(self) -> list[str]:
        """The presets that these resources allow."""
        given, absent = self.given, set(KINDS) - set(self.heads)
        allowed = [name for name, preset in PRESETS.items() if given.issuperset(preset.needs)]
        return [name for name in allowed if name not in absent]

    def check(self, draft: str) -> None:
        """Raise InputError for a preset that needs more."""
        check_needs(draft, self.given)
        if draft in KINDS and draft not in self.heads:
            kinds = ", ".join(self.heads)
            raise InputError(f"draft {draft!r} needs a head of that kind; the one here is {kinds}")
