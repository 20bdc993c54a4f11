"""`auto`, and drafts from short versions of long prompts, which it may use too."""

from dataclasses import replace

from graft.assemble.copies import paying_copies
from graft.assemble.resources import DraftResources
from graft.assemble.verifiers import GAMMA
from graft.draft.combined import Combined, what_pays
from graft.draft.drafter import Drafter
from graft.draft.models.chains import DEPTH, Chains
from graft.draft.models.model import UNCERTAIN, DraftModel
from graft.draft.pacing.paced import Paced
from graft.draft.short_context.short_prompt import (
    LEAST_PROMPT,
    ByPrompt,
    Prompts,
    ShortContextDrafter,
    pays_from,
)
from graft.draft.short_context.short_prompt import SOURCE as SHORT_CONTEXT


def auto(resources: DraftResources, *networks: Drafter) -> Drafter:
    """Copies, and what networks guess, as many as pay; for prompts so long that it may pay also
    the target with a short version of them. And any of it as long as that pays by the clock."""
    copies = paying_copies()
    drafter = Combined([copies, *networks], prune=what_pays) if networks else copies
    target, least = resources.target, None
    if resources.shorten:
        least = pays_from(target.costs, target, DEPTH, target.model.context_length)
    if least is not None:
        short = _short(replace(resources, chains=Chains()), target, least=least, reward=UNCERTAIN)
        long = Combined([copies, *networks, short], prune=what_pays)
        drafter = ByPrompt(long, drafter, least=least)
    if resources.clock is None:
        return drafter
    everybody = None if drafter is copies else drafter
    return Paced(copies, resources.clock, everybody, least=0 if networks else least or 0)


def rapid(resources: DraftResources) -> ShortContextDrafter:
    """RAPID: chains of a smaller draft model, else of the target, from short prompts."""
    return _short(resources, resources.model if _smaller(resources) else resources.target)


def rapid_up(resources: DraftResources) -> ShortContextDrafter:
    """RAPID with a larger draft model."""
    chains = replace(resources.chains, gamma=resources.chains.gamma or GAMMA)
    return _short(replace(resources, chains=chains), resources.model)


def _smaller(resources: DraftResources) -> bool:
    """Whether there is a draft model that takes less time than the target."""
    model, target = resources.model, resources.target
    return bool(model) and model.costs.step(LEAST_PROMPT, 1) < target.costs.step(LEAST_PROMPT, 1)


def _short(
    resources: DraftResources, helper: DraftModel, *, least: int = LEAST_PROMPT, reward: float = 0.0
) -> ShortContextDrafter:
    """Chains from short prompts."""
    prompts = Prompts(
        resources.shorten,
        least=least,
        drafted_whole=helper is not resources.target,
        waits=resources.chains.sampled,
    )
    named = replace(helper, source=SHORT_CONTEXT)
    return ShortContextDrafter(resources.chains.drafter(named, reward=reward), prompts).get_ready()
