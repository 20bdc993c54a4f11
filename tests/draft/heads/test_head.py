"""Heads as drafters: the trees they grow, what they keep, when they are left alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.costs import NODES, measure
from graft.draft.heads.growth import Beam, Preferred, as_pool, grow
from graft.draft.heads.head import (
    BEAMS,
    FOLLOWED,
    LONGSPEC_BEAM,
    DraftHead,
    HeadDrafter,
    growth_for,
)
from graft.draft.heads.ranks import RANKS, Ranks, expected_levels
from graft.draft.heads.worth import Paying
from graft.models.heads.load import run_head
from graft.models.heads.runner import TREE_ROWS, Known, Round
from graft.models.language_model import TargetStep
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain

BUDGET = Budget(80, np.linspace(1, 1.1, 81))  # nodes are all but free
PROMPT = [40, 41, 42, 50, 51, 60]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Stub:
    """A head that answers from tables: logits of a token's children by the path to it."""

    def __init__(self, vocabulary, seed=0, *, levels=()):
        self.tokens = torch.arange(vocabulary)
        self.config = tiny_head("eagle2", tiny_network()).config
        self.generator, self.vocabulary = torch.Generator().manual_seed(seed), vocabulary
        self.levels = levels  # if given, logits are drawn from these few values: many ties
        self.table = {}

    def logits(self, outputs):
        return torch.stack([torch.stack([self.of(tuple(path)) for path in row]) for row in outputs])

    def of(self, path):
        if path not in self.table:
            drawn = 3 * torch.randn(self.vocabulary, generator=self.generator)
            if self.levels:
                places = torch.randint(
                    len(self.levels), (self.vocabulary,), generator=self.generator
                )
                drawn = torch.tensor(self.levels)[places]
            self.table[path] = drawn
        return self.table[path]


class StubRound:
    """Outputs are the paths themselves."""

    def root(self):
        self.paths = [[()]]
        return _Rows(self.paths)

    def level(self, tokens, above):
        self.paths = [
            [(*self.paths[b][a], t) for t, a in zip(row, parents, strict=True)]
            for b, (row, parents) in enumerate(zip(tokens.tolist(), above.tolist(), strict=True))
        ]
        return _Rows(self.paths)


class _Rows(list):
    """Looks like a tensor [B, W, any] as far as the growth asks."""

    device = torch.device("cpu")

    @property
    def shape(self):
        return (len(self), len(self[0]), 1)


def enumerated(stub, beam):
    """EAGLE-2's pool by hand: (path, cumulative log) in level order, siblings best first."""
    pool, frontier = [], [((), 0.0)]
    for size in beam.sizes:
        level = []
        for path, score in frontier:
            best = stub.of(path).log_softmax(-1).topk(min(beam.children, stub.vocabulary))
            for token, log in zip(best.indices.tolist(), best.values, strict=True):
                level.append(((*path, token), float(np.float32(score) + log.numpy())))
        order = sorted(range(len(level)), key=lambda i: -level[i][1])[:size]
        frontier = [level[i] for i in order]
        pool += level if beam.keeps_all else frontier
    return pool


def paths_of(pool):
    paths = [()]
    for token, parent in zip(
        pool.tokens[0, 1:].tolist(), pool.parents[0, 1:].tolist(), strict=True
    ):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("beam", [Beam((10,) * 6, 10, keeps_all=True), LONGSPEC_BEAM])
@pytest.mark.parametrize("seed", range(3))
def test_the_pool_is_the_papers(beam, seed):
    stub = Stub(40, seed)
    pool = as_pool(grow(StubRound(), Preferred(stub, [None]), beam))
    expected = enumerated(stub, beam)
    assert sorted(paths_of(pool)) == sorted(path for path, _ in expected)
    assert len(expected) == (510 if beam.keeps_all else 68)


@pytest.mark.parametrize("vocabulary", [2, 3, 40])
@pytest.mark.parametrize("levels", [(), (0.0,), (0.0, 1.0)])
def test_eagles_tree_is_the_best_59_of_the_pool_ties_included(vocabulary, levels):
    """Whatever ties there are, the tree is closed and holds the greatest sum of probabilities."""
    stub = Stub(vocabulary, levels=levels)
    beam, nodes = BEAMS["eagle2"]
    pool = as_pool(grow(StubRound(), Preferred(stub, [None]), beam))
    drafter, followed = settled(pool, nodes)
    totals = path_totals(pool)
    best = np.sort(totals)[::-1][:nodes]
    assert len(followed.tree) - 1 == min(nodes, len(totals))
    np.testing.assert_allclose(np.sort(followed.tree.scores[1:])[::-1], np.exp(best), rtol=1e-4)
    for node, path in enumerate(followed.tree.paths()[1:], 1):
        assert int(followed.tree.parents[node]) < node
        assert len(set(map(tuple, followed.tree.paths()))) == len(followed.tree)
        assert tuple(path) in set(paths_of(pool))


def path_totals(pool):
    totals = np.zeros(pool.logs.shape[1])
    for node, parent in enumerate(pool.parents[0].tolist()):
        if node:
            totals[node] = totals[parent] + pool.logs[0, node]
    return totals[1:]


def settled(pool, nodes):
    drafter = HeadDrafter(helper_of("eagle2"), BEAMS["eagle2"][0], nodes=nodes)
    drafter.start(DraftContext(0, PROMPT, [], tokens=[70]))
    drafter._settle(drafter._followed[0], pool, 0)
    return drafter, drafter._followed[0]


def helper_of(kind, model=None, **more):
    network = tiny_network()
    model = model or tiny_engine(network).model
    runner = run_head(tiny_head(kind, network, **more), model, packed=True)
    return DraftHead(runner, growth_for(runner), costs_of(0.1))


class Target:
    """A target that reads and writes what the test says, shown to a drafter step by step."""

    def __init__(self, kind, *, beam=True, nodes=30, clock=None, **more):
        self.model = tiny_engine(tiny_network()).model
        self.helper = replace(helper_of(kind, self.model, **more), clock=clock)
        self.drafter = HeadDrafter(self.helper, BEAMS[kind][0] if beam else None, nodes=nodes)
        self.extents, self.contexts = {}, {}

    def begin(self, sequence, prompt, first=70, params=None):
        context = DraftContext(sequence, list(prompt), [])
        context.sampler = Sampler(params or SamplingParams(), context.prompt, VOCABULARY)
        self.extents[sequence], self.contexts[sequence] = self.model.open(64), context
        self.drafter.start(context)
        self.step(sequence, prompt, [first])
        return context

    def step(self, sequence, read, written):
        """The target reads a chain and emits tokens."""
        context, extent = self.contexts[sequence], self.extents[sequence]
        self.model.score([extent], [chain(read)])
        self.model.commit(extent, list(range(len(read))))
        context.tokens += written
        context.sampler.record(written)
        self.drafter.observe([TargetStep(sequence, written, list(range(len(read))), extent)])

    def propose(self, *sequences, budget=BUDGET):
        return self.drafter.propose([self.contexts[each] for each in sequences], budget)


def assert_equal(tree, other):
    for name in ("tokens", "parents"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(other, name))
    np.testing.assert_allclose(tree.scores, other.scores, rtol=1e-3)


@every_kind
def test_after_hundreds_of_steps_a_tree_is_that_of_a_fresh_pass(kind):
    target = Target(kind, knows=False, **({"window": 64} if kind == "longspec" else {}))
    random = np.random.default_rng(0)
    context = target.begin(0, PROMPT)
    for step in range(200):
        if step % 7 < 3:
            target.propose(0)
        accepted = random.integers(3, 120, random.integers(0, 4)).tolist()
        target.step(0, [context.root, *accepted], [*accepted, int(random.integers(3, 120))])
    (tree,) = target.propose(0)
    target.begin(1, [*PROMPT, *context.tokens[:-1]], context.root)
    (fresh,) = target.propose(1)
    assert_equal(tree, fresh)


@every_kind
def test_sequences_grow_together_as_they_grow_alone(kind):
    target = Target(kind, knows=False)
    target.begin(0, PROMPT)
    target.begin(1, PROMPT * 9, 71)
    target.begin(2, PROMPT[:1], 72, SamplingParams(temperature=1.0, seed=5))
    together = target.propose(0, 1, 2)
    for sequence, tree in enumerate(together):
        assert_equal(tree, target.propose(sequence)[0])
    for sequence in range(3):
        target.drafter.finish(sequence)
    assert target.helper.runner.arena.taken == 0


def test_longspecs_memory_does_not_grow_with_the_context():
    target = Target("longspec", window=64)
    context = target.begin(0, PROMPT * 5)
    target.propose(0)
    rows = target.helper.runner.storage.rows
    for _ in range(60):
        target.step(0, [context.root, *range(20, 28)], [*range(20, 28), 9])
        target.propose(0)
    assert target.extents[0].total > 500
    assert target.helper.runner.arena.taken == 64 + TREE_ROWS
    assert target.helper.runner.storage.rows == rows


def test_what_was_read_by_others_is_not_seen_by_an_eagle():
    target = Target("eagle2")
    extent = target.model.open(64)
    target.model.prefill(extent, PROMPT)
    context = DraftContext(0, [*PROMPT, 9, 10], [])
    target.extents[0], target.contexts[0] = extent, context
    context.sampler = Sampler(SamplingParams(), context.prompt, VOCABULARY)
    target.drafter.start(context)
    target.step(0, [9, 10], [70])
    assert context.unseen == len(PROMPT)
    assert len(target.propose(0)[0]) > 1


@every_kind
def test_a_sequence_that_was_never_shown_is_not_drafted_for(kind):
    target = Target(kind)
    target.contexts[0] = DraftContext(0, PROMPT, [], tokens=[70])
    target.drafter.start(target.contexts[0])
    assert len(target.propose(0)[0]) == 1
    target.drafter.finish(0)


@every_kind
def test_a_budget_without_nodes_gives_no_draft(kind):
    target = Target(kind)
    target.begin(0, PROMPT)
    assert len(target.propose(0, budget=replace(BUDGET, nodes=0))[0]) == 1


@every_kind
def test_sampled_drafts_are_drawn_with_the_targets_noise(kind):
    """The first guess is what the sampler draws from the head's own logits."""
    target, hits = Target(kind, draft_vocabulary=60), 0
    runner = target.helper.runner
    for seed in range(20):
        params = SamplingParams(temperature=1.0, seed=seed)
        context = target.begin(seed, PROMPT, params=params)
        (tree,) = target.propose(seed)
        known = Known(runner, [target.drafter._followed[seed].memory], [target.extents[seed]])
        logits = runner.logits(Round(runner, known).root())[0, 0]
        whole = torch.full((VOCABULARY,), -torch.inf).index_copy(0, runner.tokens, logits)
        children = np.flatnonzero(tree.parents == 0)
        best = children[np.argmax(tree.scores[children])]
        hits += int(tree.tokens[best]) == context.sampler.draw(whole, [])
    assert hits == 20


@every_kind
def test_only_drafted_ids_are_drafted(kind):
    target = Target(kind, draft_vocabulary=12)
    target.begin(0, PROMPT)
    (tree,) = target.propose(0)
    known = set(target.helper.runner.tokens.tolist())
    assert set(tree.tokens[1:].tolist()) <= known


# What pays


def plain_seconds(nodes_cost):
    return np.linspace(1, 1 + nodes_cost, 64)


@pytest.mark.parametrize(("level", "expected"), [(0.001, 6), (3.0, 0)])
def test_a_cheap_head_goes_deep_and_a_dear_one_nowhere(level, expected):
    costs = replace(costs_of(1.0), lengths=(1,), nodes=(1, 64), seconds=((level, level),))
    draft = Paying(costs).choose([Ranks()], 100, Budget(63, plain_seconds(0.2)))
    assert (draft.beam.depth if draft else 0) == expected


def test_dear_nodes_make_beams_narrow():
    costs = replace(costs_of(1.0), lengths=(1,), nodes=(1, 64), seconds=((0.01, 0.6),))
    dear = Paying(costs).choose([Ranks()], 100, Budget(63, plain_seconds(12.0)))
    cheap = Paying(costs_of(0.0001)).choose([Ranks()], 100, Budget(63, plain_seconds(0.1)))
    assert max(dear.beam.sizes) < max(cheap.beam.sizes)


def test_expected_levels_are_products_of_rates():
    rates = np.array([0.5, 0.2, 0.1])
    first, second = expected_levels(rates, 2, 2)
    np.testing.assert_allclose(first, rates)
    expected = sorted((a * b for a, b in product(rates[:2], rates)), reverse=True)
    np.testing.assert_allclose(second, expected)


def test_ranks_learn_what_comes_true():
    ranks = Ranks(Ranks())
    tree = replace(chain([1, 5]), scores=np.array([1, 0.9], np.float32))
    for _ in range(200):
        ranks.observe(tree, np.array([1.0, 0.9]), [6])
    assert ranks.rates.sum() < 0.05
    for _ in range(200):
        ranks.observe(tree, np.array([1.0, 0.9]), [5])
    assert ranks.rates[0] > 0.95
    assert len(ranks.rates) == RANKS


@every_kind
def test_a_head_that_is_always_wrong_is_soon_left_alone(kind):
    target = Target(kind, beam=False)
    context = target.begin(0, PROMPT)
    budget = Budget(63, plain_seconds(12.0))
    sizes = []
    for _ in range(120):
        (tree,) = target.propose(0, budget=budget)
        sizes.append(len(tree) - 1)
        drafted = target.drafter.first_tokens(0)  # before anything was cut
        wrong = next(token for token in range(3, 120) if token not in drafted)
        target.step(0, [context.root], [wrong])
    assert sum(sizes[:20]) > 0
    assert sum(sizes[-40:]) <= 4


@pytest.mark.parametrize(("late", "goes_on"), [(1.0, True), (9.0, False)])
def test_drafts_that_take_longer_than_was_measured_end(late, goes_on):
    """The head is always right, and still not worth it where its rounds take so long."""
    now = [0.0]
    target = Target("eagle2", beam=False, clock=lambda: now[0])
    context = target.begin(0, PROMPT)
    sizes = []
    for _ in range(200):
        (tree,) = target.propose(0)
        sizes.append(len(tree) - 1)
        path = []
        while tree.children[path[-1] if path else 0]:
            path.append(min(tree.children[path[-1] if path else 0].values()))
        now[0] += late * 1.7 if path else 1.0
        came = tree.tokens[path].tolist()
        target.step(0, [context.root, *came], [*came, 9])
    assert (sum(size > 0 for size in sizes[-100:]) > 50) == goes_on


@every_kind
def test_where_drafts_are_far_from_paying_few_sequences_are_followed(kind):
    target = Target(kind, beam=False)
    dear = Budget(63, np.linspace(1, 64, 64))  # a node takes as long as a plain step
    target.begin(0, PROMPT)
    target.propose(0, budget=dear)
    for sequence in range(1, 2 * FOLLOWED):
        target.begin(sequence, PROMPT)
        target.propose(sequence, budget=dear)
    followed = [each for each, known in target.drafter._followed.items() if known.extent]
    assert followed == [0, FOLLOWED - 1, 2 * FOLLOWED - 1]
    held = target.helper.runner.arena.taken
    for sequence in range(2 * FOLLOWED):
        target.drafter.finish(sequence)
    assert target.helper.runner.arena.taken == 0
    assert held > 0 or kind == "longspec"  # which reads when it drafts


def test_a_sure_copy_does_not_speak_against_a_head():
    target = Target("eagle2", beam=False)
    target.begin(0, PROMPT)
    target.propose(0, budget=Budget(63, np.linspace(1, 64, 64), base_tokens=7))
    assert not target.drafter._hopeless


@every_kind
def test_a_head_that_pays_again_is_followed_again(kind):
    target = Target(kind, beam=False)
    target.begin(0, PROMPT)
    target.propose(0, budget=Budget(63, np.linspace(1, 64, 64)))
    assert target.drafter._hopeless
    target.drafter._chosen.clear()  # as a review does
    target.propose(0, budget=BUDGET)
    target.begin(1, PROMPT)
    assert len(target.propose(1, budget=BUDGET)[0]) > 1


@every_kind
def test_levels_are_timed_as_they_are_run(kind):
    helper = helper_of(kind)
    costs = measure(helper.runner, helper.growth)
    assert costs.nodes == NODES
    assert all(0 < second < 10 for row in costs.seconds for second in row)
    assert helper.runner.arena.taken == helper.runner.model.arena.taken == 0


def test_room_is_taken_once():
    longspec, eagle = helper_of("longspec", window=64).runner, helper_of("eagle2").runner
    longspec.hold(5)
    assert longspec.storage.rows == 5 * (64 + TREE_ROWS)
    eagle.model.arena.hold(1024)
    eagle.hold(5)
    assert eagle.storage.rows == 1024 + 5 * TREE_ROWS
