"""Heads as drafters: their trees, their memory, and when they stop drafting."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, costs_of, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.draft.drafter import Budget, DraftContext
from graft.draft.heads.costs import NODES, measure_levels
from graft.draft.heads.growth import Beam, SampledChildren, from_device, grow
from graft.draft.heads.head import (
    BEAMS,
    LONGSPEC_BEAM,
    SAMPLE_EVERY,
    DraftHead,
    HeadDrafter,
    growth_for,
)
from graft.draft.heads.ranks import RANKS, Ranks, expected_levels
from graft.draft.heads.shapes import ShapeChooser
from graft.models.heads.load import run_head
from graft.models.heads.runner import TREE_ROWS, Known, Round
from graft.models.language_model import TargetStep
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain

BUDGET = Budget(80, np.linspace(1, 1.1, 81))  # nodes are all but free
PROMPT = [40, 41, 42, 50, 51, 60]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Stub:
    """A head with fixed logits for every path."""

    def __init__(self, vocabulary, seed=0, *, levels=()):
        self.tokens = torch.arange(vocabulary)
        self.config = tiny_head("eagle2", tiny_network()).config
        self.generator, self.vocabulary = torch.Generator().manual_seed(seed), vocabulary
        self.levels = levels  # if given, the only values of logits: many ties
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
    """Has the attributes of a tensor [B, W, any] that `grow` uses."""

    device = torch.device("cpu")

    @property
    def shape(self):
        return (len(self), len(self[0]), 1)


def enumerated(stub, beam):
    """The candidates by definition: (path, cumulative log) in level order, siblings best first."""
    candidates, frontier = [], [((), 0.0)]
    for size in beam.sizes:
        level = []
        for path, score in frontier:
            best = stub.of(path).log_softmax(-1).topk(min(beam.children, stub.vocabulary))
            for token, log in zip(best.indices.tolist(), best.values, strict=True):
                level.append(((*path, token), float(np.float32(score) + log.numpy())))
        order = sorted(range(len(level)), key=lambda i: -level[i][1])[:size]
        frontier = [level[i] for i in order]
        candidates += level if beam.keeps_all else frontier
    return candidates


def paths_of(candidates):
    paths = [()]
    for token, parent in zip(
        candidates.tokens[0, 1:].tolist(), candidates.parents[0, 1:].tolist(), strict=True
    ):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("beam", [Beam((10,) * 6, 10, keeps_all=True), LONGSPEC_BEAM])
@pytest.mark.parametrize("seed", range(3))
def test_candidates_match_the_papers_beams(beam, seed):
    stub = Stub(40, seed)
    candidates = from_device(grow(StubRound(), SampledChildren(stub, [None]), beam))
    expected = enumerated(stub, beam)
    assert sorted(paths_of(candidates)) == sorted(path for path, _ in expected)
    assert len(expected) == (510 if beam.keeps_all else 68)


@pytest.mark.parametrize("vocabulary", [2, 3, 40])
@pytest.mark.parametrize("levels", [(), (0.0,), (0.0, 1.0)])
def test_eagle_tree_keeps_the_best_59_candidates_with_ties(vocabulary, levels):
    """With any ties, the tree is connected and has the greatest sum of probabilities."""
    stub = Stub(vocabulary, levels=levels)
    beam, nodes = BEAMS["eagle2"]
    candidates = from_device(grow(StubRound(), SampledChildren(stub, [None]), beam))
    state = built(candidates, nodes)._states[0]
    totals = path_totals(candidates)
    best = np.sort(totals)[::-1][:nodes]
    assert len(state.tree) - 1 == min(nodes, len(totals))
    np.testing.assert_allclose(np.sort(state.tree.scores[1:])[::-1], np.exp(best), rtol=1e-4)
    for node, path in enumerate(state.tree.paths()[1:], 1):
        assert int(state.tree.parents[node]) < node
        assert len(set(map(tuple, state.tree.paths()))) == len(state.tree)
        assert tuple(path) in set(paths_of(candidates))


def test_first_tokens_are_the_best_ten_whatever_the_tree_keeps():
    """RASD compares retrieved branches with the head's distribution, not with the cut tree."""
    stub = Stub(40)
    candidates = from_device(grow(StubRound(), SampledChildren(stub, [None]), BEAMS["eagle2"][0]))
    drafter = built(candidates, 3)
    assert drafter.first_tokens(0) == stub.of(()).topk(10).indices.tolist()
    assert len(drafter._states[0].tree) == 4


def path_totals(candidates):
    totals = np.zeros(candidates.logs.shape[1])
    for node, parent in enumerate(candidates.parents[0].tolist()):
        if node:
            totals[node] = totals[parent] + candidates.logs[0, node]
    return totals[1:]


def built(candidates, nodes):
    drafter = HeadDrafter(head_of("eagle2"), BEAMS["eagle2"][0], nodes=nodes)
    drafter.start(DraftContext(0, PROMPT, [], tokens=[70]))
    drafter._build_tree(drafter._states[0], candidates, 0)
    return drafter


def head_of(kind, model=None, **more):
    network = tiny_network()
    model = model or tiny_engine(network).model
    runner = run_head(tiny_head(kind, network, **more), model, packed=True)
    return DraftHead(runner, growth_for(runner), costs_of(0.1))


class Target:
    """A target that commits the tokens a test chooses, observed by a drafter step by step."""

    def __init__(self, kind, *, beam=True, nodes=30, **more):
        self.model = tiny_engine(tiny_network()).model
        self.head = head_of(kind, self.model, **more)
        self.drafter = HeadDrafter(self.head, BEAMS[kind][0] if beam else None, nodes=nodes)
        self.extents, self.contexts = {}, {}

    def begin(self, sequence, prompt, first=70, params=None):
        context = DraftContext(sequence, list(prompt), [])
        context.sampler = Sampler(params or SamplingParams(), context.prompt, VOCABULARY)
        self.extents[sequence], self.contexts[sequence] = self.model.open(64), context
        self.drafter.start(context)
        self.step(sequence, prompt, [first])
        return context

    def step(self, sequence, scored, emitted):
        """The target scores a chain and emits tokens."""
        context, extent = self.contexts[sequence], self.extents[sequence]
        self.model.score([extent], [chain(scored)])
        self.model.commit(extent, list(range(len(scored))))
        context.tokens += emitted
        context.sampler.record(emitted)
        self.drafter.observe([TargetStep(sequence, emitted, list(range(len(scored))), extent)])

    def propose(self, *sequences, budget=BUDGET):
        return self.drafter.propose([self.contexts[each] for each in sequences], budget)


def assert_equal(tree, other):
    for name in ("tokens", "parents"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(other, name))
    np.testing.assert_allclose(tree.scores, other.scores, rtol=1e-3)


@every_kind
def test_tree_after_many_steps_equals_a_fresh_prefill(kind):
    target = Target(kind, knows=False, **({"window": 64} if kind == "longspec" else {}))
    random = np.random.default_rng(0)
    context = target.begin(0, PROMPT)
    for step in range(70):
        if step % 7 < 3:
            target.propose(0)
        accepted = random.integers(3, 120, random.integers(0, 4)).tolist()
        target.step(0, [context.root, *accepted], [*accepted, int(random.integers(3, 120))])
    (tree,) = target.propose(0)
    target.begin(1, [*PROMPT, *context.tokens[:-1]], context.root)
    (fresh,) = target.propose(1)
    assert_equal(tree, fresh)


@every_kind
def test_batched_trees_equal_single_trees(kind):
    target = Target(kind, knows=False)
    target.begin(0, PROMPT)
    target.begin(1, PROMPT * 9, 71)
    target.begin(2, PROMPT[:1], 72, SamplingParams(temperature=1.0, seed=5))
    together = target.propose(0, 1, 2)
    for sequence, tree in enumerate(together):
        assert_equal(tree, target.propose(sequence)[0])
    for sequence in range(3):
        target.drafter.finish(sequence)
    assert target.head.runner.arena.taken == 0


def test_longspec_memory_is_bounded_by_its_window():
    target = Target("longspec", window=64)
    context = target.begin(0, PROMPT * 5)
    target.propose(0)
    rows = target.head.runner.storage.rows
    for _ in range(60):
        target.step(0, [context.root, *range(20, 28)], [*range(20, 28), 9])
        target.propose(0)
    assert target.extents[0].total > 500
    assert target.head.runner.arena.taken == 64 + TREE_ROWS
    assert target.head.runner.storage.rows == rows


def test_eagle_starts_behind_prefix_cached_tokens():
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
def test_no_draft_before_the_first_target_step(kind):
    target = Target(kind)
    target.contexts[0] = DraftContext(0, PROMPT, [], tokens=[70])
    target.drafter.start(target.contexts[0])
    assert len(target.propose(0)[0]) == 1
    target.drafter.finish(0)


@every_kind
def test_no_draft_without_budget(kind):
    target = Target(kind)
    target.begin(0, PROMPT)
    assert len(target.propose(0, budget=replace(BUDGET, nodes=0))[0]) == 1


@every_kind
def test_sampled_drafts_use_the_targets_noise(kind):
    """The best first token is what the sampler draws from the head's logits."""
    target, hits = Target(kind, draft_vocabulary=60), 0
    runner = target.head.runner
    for seed in range(20):
        params = SamplingParams(temperature=1.0, seed=seed)
        context = target.begin(seed, PROMPT, params=params)
        (tree,) = target.propose(seed)
        known = Known(runner, [target.drafter._states[seed].memory], [target.extents[seed]])
        logits = runner.logits(Round(runner, known).root())[0, 0]
        whole = torch.full((VOCABULARY,), -torch.inf).index_copy(0, runner.tokens, logits)
        children = np.flatnonzero(tree.parents == 0)
        best = children[np.argmax(tree.scores[children])]
        hits += int(tree.tokens[best]) == context.sampler.draw(whole, [])
    assert hits == 20


@every_kind
def test_only_the_draft_vocabulary_is_drafted(kind):
    target = Target(kind, draft_vocabulary=12)
    target.begin(0, PROMPT)
    (tree,) = target.propose(0)
    known = set(target.head.runner.tokens.tolist())
    assert set(tree.tokens[1:].tolist()) <= known


# Adaptive shapes


def plain_seconds(nodes_cost):
    return np.linspace(1, 1 + nodes_cost, 64)


@pytest.mark.parametrize(("level", "expected"), [(0.001, 6), (3.0, 0)])
def test_depth_depends_on_level_cost(level, expected):
    costs = replace(costs_of(1.0), lengths=(1,), nodes=(1, 64), seconds=((level, level),))
    beam = ShapeChooser(costs).choose([Ranks()], 100, Budget(63, plain_seconds(0.2)))
    assert (beam.depth if beam else 0) == expected


def test_expensive_nodes_narrow_the_beam():
    costs = replace(costs_of(1.0), lengths=(1,), nodes=(1, 64), seconds=((0.01, 0.6),))
    expensive = ShapeChooser(costs).choose([Ranks()], 100, Budget(63, plain_seconds(12.0)))
    cheap = ShapeChooser(costs_of(0.0001)).choose([Ranks()], 100, Budget(63, plain_seconds(0.1)))
    assert max(expensive.sizes) < max(cheap.sizes)


def test_expected_levels_are_products_of_rates():
    rates = np.array([0.5, 0.2, 0.1])
    first, second = expected_levels(rates, 2, 2)
    np.testing.assert_allclose(first, rates)
    expected = sorted((a * b for a, b in product(rates[:2], rates)), reverse=True)
    np.testing.assert_allclose(second, expected)


def test_ranks_follow_accepted_tokens():
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
def test_head_that_is_always_wrong_stops_drafting(kind):
    target = Target(kind, beam=False)
    context = target.begin(0, PROMPT)
    budget = Budget(63, plain_seconds(12.0))
    sizes = []
    for _ in range(120):
        (tree,) = target.propose(0, budget=budget)
        sizes.append(len(tree) - 1)
        drafted = target.drafter.first_tokens(0)  # before pruning
        wrong = next(token for token in range(3, 120) if token not in drafted)
        target.step(0, [context.root], [wrong])
    assert sum(sizes[:20]) > 0
    assert sum(sizes[-40:]) <= 4


@every_kind
def test_slow_head_drafts_for_few_sequences(kind):
    target = Target(kind, beam=False)
    slow = Budget(63, np.linspace(1, 64, 64))  # a node takes as long as a plain step
    target.begin(0, PROMPT)
    target.propose(0, budget=slow)
    for sequence in range(1, 2 * SAMPLE_EVERY):
        target.begin(sequence, PROMPT)
        target.propose(sequence, budget=slow)
    drafted = [each for each, state in target.drafter._states.items() if state.extent]
    assert drafted == [0, SAMPLE_EVERY - 1, 2 * SAMPLE_EVERY - 1]
    held = target.head.runner.arena.taken
    for sequence in range(2 * SAMPLE_EVERY):
        target.drafter.finish(sequence)
    assert target.head.runner.arena.taken == 0
    assert held > 0 or kind == "longspec"  # LongSpec prefills when it drafts


def test_other_drafters_tokens_do_not_make_a_head_too_slow():
    target = Target("eagle2", beam=False)
    target.begin(0, PROMPT)
    target.propose(0, budget=Budget(63, np.linspace(1, 64, 64), base_tokens=7))
    assert not target.drafter._too_slow


@every_kind
def test_head_that_saves_time_again_drafts_again(kind):
    target = Target(kind, beam=False)
    target.begin(0, PROMPT)
    target.propose(0, budget=Budget(63, np.linspace(1, 64, 64)))
    assert target.drafter._too_slow
    target.drafter._planned.clear()  # as replanning does
    target.propose(0, budget=BUDGET)
    target.begin(1, PROMPT)
    assert len(target.propose(1, budget=BUDGET)[0]) > 1


@every_kind
def test_level_costs_are_measured(kind):
    head = head_of(kind)
    costs = measure_levels(head.runner, head.growth)
    assert costs.nodes == NODES
    assert all(0 < second < 10 for row in costs.seconds for second in row)
    assert head.runner.arena.taken == head.runner.model.arena.taken == 0


def test_hold_allocates_all_rows():
    longspec, eagle = head_of("longspec", window=64).runner, head_of("eagle2").runner
    longspec.hold(5)
    assert longspec.storage.rows == 5 * (64 + TREE_ROWS)
    eagle.model.arena.hold(1024)
    eagle.hold(5)
    assert eagle.storage.rows == 1024 + 5 * TREE_ROWS
