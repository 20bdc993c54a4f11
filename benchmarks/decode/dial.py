"""A dialled drafter: a real drafter's cost, draft tokens that are right at a given rate.

`PRESET@RATE`, such as `rapid@0.8`, measures "what if 80 % of the draft tokens were accepted": the
preset drafts for real, then its draft tokens are replaced. Plain decoding's answer is known, so a
token is right with probability RATE, given that those before it are, and wrong otherwise. The text
stays plain decoding's. Of presets joined by +, those that run a network are dialled.

In a tree, the deepest path (of several the one with the highest score) gets the right tokens, and
no other node is right: RATE is the probability that a level of the tree has the right token.

A drafter that adapts learns from its verified drafts at the dialled rate, but still ends a draft
where its own confidence is low: measure a rate with a preset of fixed shape, or with gamma. A draft
model processes right tokens that it did not draft again, in the first forward of its next draft.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from random import Random

from graft.assemble.drafters import Drafters, make_drafter
from graft.assemble.presets import NETWORK, presets_of, runs_network
from graft.draft.combined import Combined, within_cost
from graft.draft.drafter import Budget, DraftContext, Drafter, options_of
from graft.errors import InputError
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import DraftTree, with_depths

# Prompt, seed, temperature
AnswerKey = tuple[tuple[int, ...], int, float]
REJECTED = -1  # equals no token
# Their lookups index the tokens of a step, so they must not get those that the dial reports
WITH_LOOKUPS = {"triforce", "triforce-head", "rasd-rest", *presets_of(NETWORK)}


def rate_of(name: str) -> float | None:
    """The rate of PRESET@RATE; None for other names. InputError where it cannot be dialled."""
    preset, _, given = name.partition("@")
    try:
        rate = float(given)
    except ValueError:
        return None
    if not 0 <= rate <= 1:
        raise InputError(f"{name!r}: behind the @ comes a rate from 0 to 1, such as 0.8")
    if not any(map(runs_network, preset.split("+"))):
        raise InputError(f"{name!r}: only drafts of a model or a head can be dialled, such as sd")
    return rate


def answer_key(prompt: list[int], seed: int, temperature: float) -> AnswerKey:
    """What an answer depends on, its length aside."""
    return tuple(prompt), seed, temperature


def dialled_drafter(
    name: str, drafters: Drafters, answers: Mapping[AnswerKey, list[int]]
) -> Drafter:
    """The drafter of PRESET@RATE; it shares nothing with that of PRESET but the models."""
    presets, rate = name.partition("@")[0].split("+"), rate_of(name)
    assert rate is not None
    made: list[Drafter] = []
    for preset in sorted(presets, key=runs_network):
        drafter = make_drafter(preset, drafters.resources, drafters.store)
        if runs_network(preset):
            learns = preset.partition(":")[0] not in WITH_LOOKUPS
            drafter = Dialled(drafter, rate, answers, learns=learns)
        made.append(drafter)
    return Combined(made, prune=within_cost) if len(made) > 1 else made[0]


class Dialled:
    """Drafts as `drafter`, with tokens that are right at `rate`, drawn anew for every position.

    With `learns`, `drafter` observes its own tokens as far as the dial made them right, otherwise
    the tokens of the step.
    """

    def __init__(
        self,
        drafter: Drafter,
        rate: float,
        answers: Mapping[AnswerKey, list[int]],
        *,
        learns: bool,
    ) -> None:
        self._drafter, self._rate, self._all, self._learns = drafter, rate, answers, learns
        self.options = options_of(drafter)
        self._answers: dict[int, list[int]] = {}
        self._observed: dict[int, list[int]] = {}

    def start(self, context: DraftContext) -> None:
        """See Drafter. The answer must be known."""
        assert context.sampler is not None
        sampler = context.sampler
        key = answer_key(context.prompt, sampler.seed, sampler.params.temperature)
        self._answers[context.sequence] = self._all[key]
        self._drafter.start(context)

    def propose(self, contexts: list[DraftContext], budget: Budget) -> list[DraftTree]:
        """See Drafter."""
        trees = self._drafter.propose(contexts, budget)
        return [self._dial(*pair) for pair in zip(contexts, trees, strict=True)]

    def observe(self, steps: list[TargetStep]) -> None:
        """See Drafter."""
        if self._learns:
            steps = [replace(step, tokens=self._observed.pop(step.sequence, [])) for step in steps]
        self._drafter.observe(steps)

    def finish(self, sequence: int) -> None:
        """See Drafter."""
        self._answers.pop(sequence, None)
        self._observed.pop(sequence, None)
        self._drafter.finish(sequence)

    def _dial(self, context: DraftContext, tree: DraftTree) -> DraftTree:
        start = len(context.tokens)
        path = deepest_path(tree)
        following = self._answers[context.sequence][start : start + len(path)]
        path = path[: len(following)]
        # Numbers that follow from the request and the position alone repeat in every run
        seed = context.sampler.seed if context.sampler else 0
        draw = Random(f"{seed} {start}").random
        right = leading(path, lambda _: draw() < self._rate)
        rejected = [REJECTED] * (right < len(path))
        self._observed[context.sequence] = [*tree.tokens[path[:right]].tolist(), *rejected]
        return dial(tree, path, following, right) if path else tree


def leading(items: list[int], holds: Callable[[int], bool]) -> int:
    """How many of the first items it holds for; it is not called after the first failure."""
    return next((place for place, each in enumerate(items) if not holds(each)), len(items))


def deepest_path(tree: DraftTree) -> list[int]:
    """The nodes below the root down to the deepest leaf; of several the one with the best score."""
    depths = tree.depths
    node = max(range(len(tree)), key=lambda each: (depths[each], tree.scores[each]))
    path = []
    while node > 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def dial(tree: DraftTree, path: list[int], answer: list[int], right: int) -> DraftTree:
    """The tree with the answer's tokens at the first `right` nodes of a path, and no other node
    that continues them with the answer's token."""
    tokens, parents = tree.tokens.copy(), tree.parents.tolist()
    places = None if tree.places is None else tree.places.copy()

    def put(node: int, token: int) -> None:
        tokens[node] = token
        if places is not None:
            places[node] = -1

    for depth, (node, token) in enumerate(zip(path, answer, strict=True)):
        siblings = {int(tokens[i]): i for i, each in enumerate(parents) if each == parents[node]}
        same = siblings.get(token)
        if depth == right:
            if same is not None:
                put(same, next(each for each in count() if each not in siblings))
            break
        if same != node:
            if same is not None:
                put(same, int(tokens[node]))
            put(node, token)
    return with_depths(replace(tree, tokens=tokens, places=places), tree.depths)
