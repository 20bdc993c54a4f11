"""Several drafters as one: merging, pruning, schedules, RASD."""

import gc
import threading
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from tiny import tiny_draft_model, tiny_engine

from graft.assemble.drafters import make_drafter
from graft.assemble.resources import DraftResources
from graft.draft.combined import (
    Combined,
    Concurrently,
    GuidedByModel,
    all_nodes,
    one_by_one,
    within_cost,
)
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.draft.models.growth import TreeGrowth
from graft.draft.models.model import ModelDrafter
from graft.draft.options import Casd, Rasd
from graft.draft.pacing.budget import up_to_limit
from graft.errors import InputError
from graft.match.copy_index import CopyIndex
from graft.models.language_model import TargetStep
from graft.models.step_costs import REFERENCE, StepCosts
from graft.sampling import SamplingParams
from graft.tree.draft_tree import from_paths
from graft.tree.prune import keep

BUDGET = Budget(63, np.linspace(1, 1.1, 64))


@pytest.fixture(scope="module")
def draft_model():
    return tiny_draft_model()


class Fixed(NoDraft):
    """Proposes fixed paths, and records its calls."""

    def __init__(self, paths, source="fixed", score=0.9):
        self.paths, self.source, self.score, self.calls = paths, source, score, []

    def start(self, context):
        self.calls.append(("start", context.sequence))

    def propose(self, contexts, budget):
        self.calls.append(budget)
        trees = [from_paths(context.root, self.paths, self.source) for context in contexts]
        for tree in trees:
            tree.scores[:] = self.score**tree.depths
        return trees

    def observe(self, steps):
        self.calls.append(("observe", [step.tokens for step in steps]))

    def finish(self, sequence):
        self.calls.append(("finish", sequence))


def contexts(*roots):
    return [DraftContext(i, [1, 2], [], tokens=[root]) for i, root in enumerate(roots)]


def sources(tree):
    return {tuple(path): tree.source(i) for i, path in enumerate(tree.paths()) if path}


def test_trees_are_merged():
    combined = Combined([Fixed([[3, 4], [5]], "a"), Fixed([[3, 6]], "b")], prune=all_nodes)
    (tree,) = combined.propose(contexts(7), BUDGET)
    assert sources(tree) == {(3,): "both", (5,): "a", (3, 4): "a", (3, 6): "b"}


def test_all_drafters_get_all_calls():
    drafters = [Fixed([[3]]), Fixed([[4]]), Fixed([[5]])]
    combined = Combined(drafters, prune=all_nodes)
    (context,) = contexts(7)
    combined.start(context)
    combined.propose([context], BUDGET)
    combined.observe([TargetStep(0, [3, 9])])
    combined.finish(0)
    for drafter in drafters:
        assert [each for each in drafter.calls if isinstance(each, tuple)] == [
            ("start", 0),
            ("observe", [[3, 9]]),
            ("finish", 0),
        ]


def test_detach_finishes_all_drafters_but_the_first():
    first, second = Fixed([[3]]), Fixed([[4]])
    detachable = Mock(spec=ModelDrafter)
    combined = Combined([first, second, detachable], prune=all_nodes)
    combined.start(*contexts(7))
    combined.detach(0)
    assert first.calls == [("start", 0)]
    assert second.calls == [("start", 0), ("finish", 0)]
    detachable.detach.assert_called_once_with(0)
    detachable.finish.assert_not_called()


def test_budget_counts_the_nodes_of_earlier_drafters():
    first, second, third = Fixed([[3, 4]], score=0.5), Fixed([[3]], score=0.5), Fixed([[5]])
    combined = Combined([first, second, third], prune=all_nodes)
    combined.propose(contexts(7, 8), BUDGET)
    for left in second.calls + third.calls:  # the second has nothing new
        assert left.base_tokens == pytest.approx(1 + 2 * 0.75)
        np.testing.assert_array_equal(left.seconds, BUDGET.seconds[4:])


def test_budget_ignores_nodes_beyond_the_cost():
    first, second = Fixed([[3, 4]], score=0.5), Fixed([[5]])
    expensive = Budget(63, 1 + np.arange(64))
    Combined([first, second], prune=within_cost).propose(contexts(7), expensive)
    assert second.calls[0].base_tokens == 1
    np.testing.assert_array_equal(second.calls[0].seconds, expensive.seconds)


@pytest.mark.parametrize("nodes", [0, 1, 3])
@pytest.mark.parametrize("prune", [all_nodes, within_cost])
def test_tree_keeps_to_its_budget(prune, nodes):
    combined = Combined([Fixed([[3, 4], [5, 6]]), Fixed([[7, 8]])], prune=prune)
    for tree in combined.propose(contexts(1, 2), Budget(nodes, BUDGET.seconds)):
        assert len(tree) - 1 == nodes


def test_only_nodes_within_the_cost_are_kept():
    good, bad = Fixed([[3]], score=0.9), Fixed([[4], [5]], score=0.1)
    expensive = Budget(63, 1 + 0.3 * np.arange(64))
    assert sources(
        Combined([good, bad], prune=within_cost).propose(contexts(7), expensive)[0]
    ).keys() == {(3,)}
    assert len(Combined([good, bad], prune=all_nodes).propose(contexts(7), expensive)[0]) == 4


# Concurrent drafters


class Waiting(Fixed):
    """Proposes once all drafters with the same barrier are proposing."""

    def __init__(self, barrier, paths):
        super().__init__(paths)
        self.barrier = barrier

    def propose(self, contexts, budget):
        self.barrier.wait(timeout=60)
        return super().propose(contexts, budget)


def test_lookup_and_model_run_concurrently():
    barrier = threading.Barrier(2)
    drafters = [Waiting(barrier, [[3, 4]]), Waiting(barrier, [[5]])]
    combined = Combined(drafters, prune=all_nodes, schedule=Concurrently())
    for _ in range(3):
        (tree,) = combined.propose(contexts(7), BUDGET)
        assert sources(tree).keys() == {(3,), (3, 4), (5,)}


def test_lookups_run_while_a_device_drafts():
    order = []

    class Lookup(Fixed):
        def propose(self, contexts, budget):
            order.append(("looked up", threading.current_thread() is threading.main_thread()))
            return super().propose(contexts, budget)

    class OnDevice(Fixed):
        begins_early = True

        def begin(self, contexts, budget):
            order.append("begun")

            def trees():
                order.append("waited")
                return self.propose(contexts, budget)

            return trees

    drafters = [Lookup([[3, 4]]), OnDevice([[5]])]
    (tree,) = Combined(drafters, prune=all_nodes, schedule=Concurrently()).propose(
        contexts(7), BUDGET
    )
    assert sources(tree).keys() == {(3,), (3, 4), (5,)}
    assert order == ["begun", ("looked up", True), "waited"]


@pytest.mark.parametrize("prune", [all_nodes, within_cost])
def test_both_schedules_give_the_same_tree(prune):
    drafters = [Fixed([[3, 4], [6]], "a"), Fixed([[3, 9], [8]], "b"), Fixed([[3, 4, 5]], "c", 0.7)]
    found = [
        Combined(drafters, prune=prune, schedule=schedule).propose(contexts(7, 1), BUDGET)
        for schedule in (one_by_one, Concurrently())
    ]
    for one, other in zip(*found, strict=True):
        assert sources(one) == sources(other)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("wrong", [0, 1])
def test_errors_of_either_drafter_reach_the_caller(wrong):
    """And the next draft works."""
    drafters, schedule = [Fixed([[3]]), Fixed([[4]])], Concurrently()
    combined = Combined(drafters, prune=all_nodes, schedule=schedule)
    drafters[wrong].propose = Mock(side_effect=InputError("the disk is gone"))
    with pytest.raises(InputError, match="the disk is gone"):
        combined.propose(contexts(7), BUDGET)
    del drafters[wrong].propose
    assert len(combined.propose(contexts(7), BUDGET)[0]) == 3


def test_lookup_has_finished_when_the_model_fails():
    begun, proceed, finished = threading.Event(), threading.Event(), threading.Event()

    class Slow(Fixed):
        def propose(self, contexts, budget):
            begun.set()
            proceed.wait(timeout=60)
            finished.set()
            return super().propose(contexts, budget)

    class Failing(Fixed):
        def propose(self, contexts, budget):
            begun.wait(timeout=60)
            threading.Timer(0.05, proceed.set).start()
            raise InputError("out of memory")

    with pytest.raises(InputError, match="out of memory"):
        Concurrently()([Slow([[3]]), Failing([[4]])], contexts(7), BUDGET)
    assert finished.is_set()


def test_thread_ends_with_its_drafter():
    threads = set()

    class Recorded(Fixed):
        def propose(self, contexts, budget):
            threads.add(threading.current_thread())
            return super().propose(contexts, budget)

    combined = Combined(
        [Recorded([[3]]), Recorded([[4]])], prune=all_nodes, schedule=Concurrently()
    )
    combined.propose(contexts(7), BUDGET)
    combined.propose(contexts(7), BUDGET)
    [thread] = threads - {threading.current_thread()}  # one thread for all drafts
    del combined
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.parametrize("draft", ["casd", "rasd-pld"])
def test_casd_and_rasd_look_up_on_a_thread(draft_model, draft, monkeypatch):
    threads = set()
    propose = LookupDrafter.propose

    def recorded(self, contexts, budget):
        threads.add(threading.current_thread())
        return propose(self, contexts, budget)

    monkeypatch.setattr(LookupDrafter, "propose", recorded)
    drafter, (context,) = make_drafter(draft, DraftResources(draft_model)), contexts(7)
    drafter.start(context)
    drafter.propose([context], BUDGET)
    drafter.finish(0)
    assert len(threads) == 1
    assert threading.current_thread() not in threads


# RASD: a model guides retrieval


class Guide(Fixed):
    """A model with probable first tokens, some of which are not in its tree."""

    def __init__(self, paths, *more):
        super().__init__(paths, "model", 0.5)
        self.likely = [path[0] for path in paths] + list(more)

    def first_tokens(self, sequence):
        assert sequence == 0
        return self.likely


def guided(guide, prompt, tokens, **options):
    retrieval = LookupDrafter(lambda _: CopyIndex(), up_to_limit, nodes=20, calibrated=False)
    prune = GuidedByModel(retrieval, guide, **options)
    combined = Combined([retrieval, guide], prune=prune)
    context = DraftContext(0, prompt, [(0, len(prompt))], tokens=tokens)
    combined.start(context)
    return sources(combined.propose([context], BUDGET)[0])


@pytest.mark.parametrize(("likely", "kept"), [([3], True), ([8, 3], True), ([8], False)])
def test_retrieved_branches_need_a_first_token_of_the_model(likely, kept):
    found = guided(Guide([[2, 3]], *likely), [60, 61, 3, 4], [60, 61])
    branch = {(3,): "prompt", (3, 4): "prompt", (3, 4, 60): "output", (3, 4, 60, 61): "output"}
    assert found == {(2,): "model", (2, 3): "model"} | (branch if kept else {})


@pytest.mark.parametrize(("top_k", "kept"), [(1, False), (2, False), (3, True)])
def test_first_token_must_be_among_the_models_top_k(top_k, kept):
    found = guided(Guide([[2]], 8, 3), [60, 61, 3, 4], [60, 61], top_k=top_k)
    assert ((3,) in found) == kept


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"top_k": 11}, {"branches": 0}, {"length": 33}])
def test_numbers_of_rasd_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=f"RASD's {next(iter(wrong))} must be between 1 and"):
        Rasd(**wrong)


@pytest.mark.parametrize("wrong", [{"matches": 0}, {"matches": 17}, {"length": 33}])
def test_numbers_of_casd_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=f"CASD's {next(iter(wrong))} must be between 1 and"):
        Casd(**wrong)


@pytest.mark.parametrize("draft", ["casd", "casd-prompt"])
def test_casd_copies_as_many_and_as_long_branches_as_it_says(draft_model, draft):
    prompt = [t for n in range(6) for t in (60, 61, 70 + n, *range(80, 90))]
    context, found = DraftContext(0, prompt, [(0, len(prompt))], tokens=[60, 61]), []
    for casd in (Casd(), Casd(matches=4, length=3)):
        drafter = make_drafter(draft, DraftResources(draft_model, casd=casd))
        drafter.start(context)
        tree = drafter.drafters[0].propose([context], BUDGET)[0]
        found.append((int((tree.parents == 0).sum()), int(tree.depths.max())))
    assert found == [(2, 10), (4, 3)]


def test_rasd_retrieves_as_many_and_as_long_branches_as_it_says(draft_model, monkeypatch):
    prompt = [t for n in range(6) for t in (60, 61, 70 + n, 80, 81, 82, 83 + n)]
    context, found = DraftContext(0, prompt, [(0, len(prompt))], tokens=[60, 61]), {}
    for rasd in (Rasd(), Rasd(branches=2, length=3)):
        drafter = make_drafter("rasd-pld", DraftResources(draft_model, rasd=rasd))
        drafter.start(context)
        tree = drafter.drafters[0].propose([context], BUDGET)[0]
        found[rasd.branches] = (int((tree.parents == 0).sum()), int(tree.depths.max()))
        drafter.finish(0)
    assert found == {4: (4, 8), 2: (2, 3)}


def test_shared_nodes_have_both_sources():
    found = guided(Guide([[3, 9]]), [60, 61, 3, 4], [60, 61])
    assert found[3,] == "both"
    assert (found[3, 4], found[3, 9]) == ("prompt", "model")


def test_retrieval_without_matches_continues_the_models_nodes():
    """61 alone is no match of two tokens; 61 and a draft token are."""
    prompt = [70, 61, 3, 4, 5]
    found = guided(Guide([[2], [3]]), prompt, [99, 61])
    assert found == {(2,): "model", (3,): "model", (3, 4): "prompt", (3, 4, 5): "prompt",
                     (3, 4, 5, 99): "output", (3, 4, 5, 99, 61): "output"}  # fmt: skip
    assert guided(Guide([[2], [3]]), prompt, [99, 61], levels=0).keys() == {(2,), (3,)}


def test_retrieval_continues_level_by_level():
    prompt = [70, 3, 4, 5, 6]
    found = guided(Guide([[2], [3, 4]]), prompt, [99, 61])
    assert found[3, 4, 5] == found[3, 4, 5, 6] == "prompt"
    assert (3, 4, 5) not in guided(Guide([[2], [3, 4]]), prompt, [99, 61], levels=1)
    assert (3, 4, 5) not in guided(Guide([[2, 7], [3, 4]]), prompt, [99, 61], width=1)


def test_casd_prompt_copies_from_the_prompt_only():
    """The end of the output is matched in the prompt, across their border too."""
    context = DraftContext(0, [60, 61, 3, 4, 5], [(0, 5)], tokens=[7, 8, 9, 7, 8])
    for name, expected in (("casd", {9, 7, 8}), ("casd-prompt", set())):
        assert set(copied(name, context).tokens[1:].tolist()) == expected
    context.tokens += [60, 61]
    assert copied("casd-prompt", context).tokens[1:].tolist() == [3, 4, 5]
    assert copied("casd", context).tokens[1:5].tolist() == [3, 4, 5, 7]


def copied(name, context):
    """The tree of a preset's copier, as the output grew token by token."""
    copier = make_drafter(name, DraftResources(tiny_draft_model())).drafters[0]
    growing = replace(context, tokens=context.tokens[:1])
    copier.start(growing)
    for token in context.tokens[1:]:
        growing.tokens.append(token)
        copier.observe([TargetStep(0, [token])])
    return copier.propose([growing], BUDGET)[0]


def test_lookup_after_draft_tokens():
    retrieval = LookupDrafter(lambda _: CopyIndex(), up_to_limit, nodes=20, calibrated=False)
    context = DraftContext(0, [61, 3, 4], [(0, 3)], tokens=[99, 61])
    retrieval.start(context)
    tree = retrieval.propose_after(context, [3], 20)
    assert tree.tokens[:2].tolist() == [3, 4]
    assert 0 < tree.scores[1] < tree.scores[0] == 1
    assert len(retrieval.propose_after(context, [8], 20)) == 1


def test_model_without_a_draft_prunes_nothing(draft_model):
    retrieval, model = Fixed([[3, 4]], "a"), ModelDrafter(
        draft_model, TreeGrowth(2, 4), nodes=9, adaptive=False
    )  # fmt: skip
    combined = Combined([retrieval, model], prune=GuidedByModel(retrieval, model))
    context = DraftContext(0, [40] * 600, [], tokens=[7])  # more than one prefill chunk
    combined.start(context)
    assert sources(combined.propose([context], BUDGET)[0]) == {(3,): "a", (3, 4): "a"}
    combined.finish(0)


def test_confident_lookup_makes_the_draft_model_idle():
    """The lookup's nodes leave no time to save for the draft model."""
    draft_model, budget = (
        tiny_draft_model(cost=0.3),
        Budget(63, StepCosts.read(REFERENCE).at(128)[1:]),
    )
    drafter = make_drafter("auto", DraftResources(draft_model))
    text = list(range(40, 100))
    context = DraftContext(0, text, [(0, len(text))], tokens=text[:12])
    drafter.start(context)
    drafter.propose([context], budget)  # prefills the prompt
    context.tokens.append(text[12])
    drafter.observe([TargetStep(0, [text[12]])])
    before = draft_model.model.steps
    (tree,) = drafter.propose([context], budget)
    assert draft_model.model.steps == before
    assert tree.tokens[1] == text[13]
    drafter.finish(0)


# Names


def test_names_joined_by_plus_are_one_drafter(draft_model):
    engine = tiny_engine(draft_model=draft_model)
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    plain = engine.generate("the end and the answer", params, draft="plain")
    for draft in ("sd+copy", "pld+igpg", "sd-tree+auto+pld"):
        result = engine.generate("the end and the answer", params, draft=draft)
        assert result.token_ids == plain.token_ids
        assert result.stats.num_accepted_draft_tokens > 0
    assert engine.drafters["sd+copy"] is engine.drafters["sd+copy"]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("sd", "needs a draft model"),
        ("copy+sd", "needs a draft model"),
        ("copy+", "unknown draft ''"),
        ("nothing", "unknown draft 'nothing'"),
        ("copy+nothing", "unknown draft 'nothing'"),
        ("copy+store:some/where", "datastore"),
    ],
)
def test_unknown_name_is_refused_in_one_line(draft, message):
    engine = tiny_engine()
    with pytest.raises(InputError, match=message) as refused:
        engine.generate("the end", draft=draft)
    assert "\n" not in str(refused.value)


def test_pruning_keeps_the_names_of_sources():
    tree = Combined([Fixed([[3]], "a"), Fixed([[4]], "b")], prune=all_nodes).propose(
        contexts(7), BUDGET
    )[0]
    assert {keep(tree, [0, node]).source(1) for node in (1, 2)} == {"a", "b"}
