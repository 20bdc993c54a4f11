"""What a run over questions is asked to do, checked before anything slow begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graft.assemble import check_draft
from graft.bench.settings import Split, check_load_options
from graft.errors import InputError
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.heads.load import AUTO_HEAD, may_have_head, named_head
from graft.models.load import DTYPES
from graft.rag.policies import check_policy
from graft.rag.reuse import as_reuse

SUITE = "rag"
GUIDED = "guided"


@dataclass(frozen=True, slots=True)
class Way:
    """How rounds are made: what they reuse, who drafts, whether the prompt is guided."""

    reuse: str
    draft: str
    guided: bool = False

    @property
    def name(self) -> str:
        """As it is typed."""
        return ":".join([self.reuse, self.draft, *([GUIDED] if self.guided else [])])


def as_way(name: str) -> Way:
    """From REUSE:DRAFT or REUSE:DRAFT:guided."""
    reuse, colon, rest = name.partition(":")
    guided = rest.endswith(f":{GUIDED}")
    draft = rest.removesuffix(f":{GUIDED}")
    if not colon or not draft:
        raise InputError(f"{name!r} is no way to make rounds; write REUSE:DRAFT, such as off:plain")
    return Way(as_reuse(reuse).name, draft, guided)


@dataclass(frozen=True, slots=True, kw_only=True)
class RagSettings:
    """One run: every policy with every way, on the same questions."""

    data: Path | None
    sets: Sequence[str] = ()
    policies: Sequence[str] = ("dragin",)
    ways: Sequence[Way] = (Way("off", "plain"), Way("demos", "plain"), Way("exact", "igpg"))
    model: str = DEFAULT_MODEL
    draft_model: str | None = None
    head: str = AUTO_HEAD
    dtype: str = "auto"
    device: str = "auto"
    context_length: int | None = None  # None: the model's own
    load_options: Mapping[str, Any] = field(default_factory=dict)  # more of graft.load's
    threads: int | None = None
    limit: int | None = None
    split: Split = "report"
    repeats: int = 1
    max_tokens: int | None = None  # None: as long as the set's answers are

    def __post_init__(self) -> None:
        for name in ("limit", "repeats", "max_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        check_load_options(self.load_options)
        for policy in self.policies:
            check_policy(policy)
        head = may_have_head(named_head(self.head))
        for way in self.ways:
            check_draft(way.draft, draft_model=self.draft_model is not None, head=head)
