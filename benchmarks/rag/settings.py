"""Settings of `python -m benchmarks rag`, checked before a model is loaded."""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.settings import Settings, option
from graft.assemble.presets import check_draft
from graft.errors import InputError
from graft.models.heads.installed import may_have_head, named_head
from graft.rag.policy import TUNED_FOR, check_policy
from graft.rag.reuse import as_reuse

GUIDED = "guided"


@dataclass(frozen=True, slots=True)
class RagVariant:
    """What rounds reuse, the draft preset, and whether the prompt is guided."""

    reuse: str
    draft: str
    guided: bool = False

    @property
    def name(self) -> str:
        """REUSE:DRAFT or REUSE:DRAFT:guided."""
        return ":".join([self.reuse, self.draft, *([GUIDED] if self.guided else [])])


def as_variant(name: str) -> RagVariant:
    """From REUSE:DRAFT or REUSE:DRAFT:guided."""
    reuse, colon, rest = name.partition(":")
    draft = rest.removesuffix(f":{GUIDED}")
    if not colon or not draft:
        raise InputError(f"{name!r} is no variant; write REUSE:DRAFT, such as off:plain")
    return RagVariant(as_reuse(reuse).name, draft, rest.endswith(f":{GUIDED}"))


@dataclass(frozen=True, kw_only=True)
class RagSettings(Settings):
    """Adaptive retrieval: every policy with every variant, on the same questions."""

    kind: ClassVar[str] = "rag"

    sets: tuple[str, ...] = option((), "question sets; all that are in --data")
    policies: tuple[str, ...] = option(("dragin",), "when to retrieve")
    thresholds: str = option(TUNED_FOR[0], f"of flare and dragin for {', '.join(TUNED_FOR)}")
    variants: tuple[str, ...] = option(
        ("off:plain", "demos:plain", "exact:igpg"), "REUSE:DRAFT or REUSE:DRAFT:guided"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in self.policies:
            check_policy(policy, self.thresholds)
        head = may_have_head(named_head(self.head))
        for variant in map(as_variant, self.variants):
            check_draft(variant.draft, draft_model=self.draft_model is not None, head=head)
