"""`auto`, and drafts from short versions of long prompts, which `auto` may use."""

from dataclasses import replace

from graft.assemble.copies import lookups
from graft.assemble.resources import DraftResources, required
from graft.assemble.verifiers import GAMMA
from graft.draft.combined import Combined, within_cost
from graft.draft.drafter import Drafter
from graft.draft.models.chains import MAX_DEPTH, Chains
from graft.draft.models.model import UNCERTAIN_GAIN, DraftModel
from graft.draft.pacing.controller import Controller
from graft.draft.short_context.short_prompt import (
    MIN_PROMPT,
    ByPromptLength,
    Prompts,
    ShortContextDrafter,
    min_prompt_length,
)
from graft.draft.short_context.short_prompt import SOURCE as SHORT_CONTEXT


def auto(resources: DraftResources, *networks: Drafter) -> Drafter:
    """Copies and networks within the measured step cost; for long prompts also the target with a
    short version of them. With a clock, drafters are disabled while they lose time."""
    copies = lookups(resources)
    model: Combined | ByPromptLength | None = None
    if networks:
        model = Combined([copies, *networks], prune=within_cost)
    target, min_tokens = resources.target, None
    if target and resources.shorten:
        min_tokens = min_prompt_length(target.costs, target, MAX_DEPTH, target.model.context_length)
        if min_tokens is not None:
            free = replace(resources, chains=Chains())  # of any depth, without q
            short = _short(free, target, min_tokens=min_tokens, min_gain=UNCERTAIN_GAIN)
            long = Combined([copies, *networks, short], prune=within_cost)
            model = ByPromptLength(long, model or copies, min_tokens=min_tokens)
    if resources.clock is None:
        return model or copies
    min_prompt = 0 if networks else min_tokens or 0
    ahead = target is not None and target.model.asynchronous
    return Controller(copies, resources.clock, model, min_prompt=min_prompt, runs_ahead=ahead)


def rapid(resources: DraftResources) -> ShortContextDrafter:
    """RAPID: chains of a smaller draft model, else of the target, from short prompts."""
    model = target = required(resources.target)
    seconds = target.costs.step(MIN_PROMPT, 1)
    if resources.model and resources.model.costs.step(MIN_PROMPT, 1) < seconds:
        model = resources.model
    return _short(resources, model)


def rapid_up(resources: DraftResources) -> ShortContextDrafter:
    """RAPID with a larger draft model."""
    chains = replace(resources.chains, gamma=resources.chains.gamma or GAMMA)
    return _short(replace(resources, chains=chains), required(resources.model))


def _short(
    resources: DraftResources,
    draft_model: DraftModel,
    *,
    min_tokens: int = MIN_PROMPT,
    min_gain: float = 0.0,
) -> ShortContextDrafter:
    """Chains from short prompts."""
    prompts = Prompts(
        required(resources.shorten),
        min_tokens=min_tokens,
        drafts_whole=draft_model is not resources.target,
        wait=resources.chains.sampled,
    )
    named = replace(draft_model, source=SHORT_CONTEXT)
    drafter = resources.chains.drafter(named, min_gain=min_gain)
    return ShortContextDrafter(drafter, prompts).preload()
