"""Several drafters as one: what is fused, what is pruned, what is asked again."""

import gc
import threading
from unittest.mock import Mock

import numpy as np
import pytest
from tiny import tiny_engine, tiny_helper

from graft.assemble import DraftResources, make_drafter
from graft.draft.combined import (
    AtOnce,
    Combined,
    GuidedByModel,
    everything,
    in_turn,
    what_pays,
)
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.draft.models.growth import TreeGrowth
from graft.draft.models.model import ModelDrafter
from graft.draft.pacing.budget import as_many_as_fit
from graft.errors import InputError
from graft.match.ngram import CopyIndex
from graft.models.language_model import TargetStep
from graft.models.step_costs import REFERENCE, StepCosts
from graft.sampling import SamplingParams
from graft.tree.draft_tree import from_paths
from graft.tree.prune import keep

BUDGET = Budget(63, np.linspace(1, 1.1, 64))


@pytest.fixture(scope="module")
def helper():
    return tiny_helper()


class Told(NoDraft):
    """Proposes what it was told, and remembers what it heard."""

    def __init__(self, paths, source="told", score=0.9):
        self.paths, self.source, self.score, self.heard = paths, source, score, []

    def start(self, context):
        self.heard.append(("start", context.sequence))

    def propose(self, contexts, budget):
        self.heard.append(budget)
        trees = [from_paths(context.root, self.paths, self.source) for context in contexts]
        for tree in trees:
            tree.scores[:] = self.score**tree.depths
        return trees

    def observe(self, steps):
        self.heard.append(("observe", [step.tokens for step in steps]))

    def finish(self, sequence):
        self.heard.append(("finish", sequence))


def contexts(*roots):
    return [DraftContext(i, [1, 2], [], tokens=[root]) for i, root in enumerate(roots)]


def sources(tree):
    return {tuple(path): tree.source(i) for i, path in enumerate(tree.paths()) if path}


def test_trees_are_grafted_onto_one_another():
    combined = Combined([Told([[3, 4], [5]], "a"), Told([[3, 6]], "b")], prune=everything)
    (tree,) = combined.propose(contexts(7), BUDGET)
    assert sources(tree) == {(3,): "both", (5,): "a", (3, 4): "a", (3, 6): "b"}


def test_everyone_hears_of_everything():
    drafters = [Told([[3]]), Told([[4]]), Told([[5]])]
    combined = Combined(drafters, prune=everything)
    (context,) = contexts(7)
    combined.start(context)
    combined.propose([context], BUDGET)
    combined.observe([TargetStep(0, [3, 9])])
    combined.finish(0)
    for drafter in drafters:
        assert [each for each in drafter.heard if isinstance(each, tuple)] == [
            ("start", 0),
            ("observe", [[3, 9]]),
            ("finish", 0),
        ]


def test_the_first_goes_on_without_the_others():
    first, second = Told([[3]]), Told([[4]])
    learns = Mock(spec=ModelDrafter)
    combined = Combined([first, second, learns], prune=everything)
    combined.start(*contexts(7))
    combined.detach(0)
    assert first.heard == [("start", 0)]
    assert second.heard == [("start", 0), ("finish", 0)]
    learns.leave.assert_called_once_with(0)
    learns.finish.assert_not_called()


def test_each_knows_what_those_before_it_promise():
    first, second, third = Told([[3, 4]], score=0.5), Told([[3]], score=0.5), Told([[5]])
    combined = Combined([first, second, third], prune=everything)
    combined.propose(contexts(7, 8), BUDGET)
    for left in second.heard + third.heard:  # the second has nothing new
        assert left.base_tokens == pytest.approx(1 + 2 * 0.75)
        np.testing.assert_array_equal(left.seconds, BUDGET.seconds[4:])


def test_promises_that_do_not_pay_do_not_count():
    first, second = Told([[3, 4]], score=0.5), Told([[5]])
    dear = Budget(63, 1 + np.arange(64))
    Combined([first, second], prune=what_pays).propose(contexts(7), dear)
    assert second.heard[0].base_tokens == 1
    np.testing.assert_array_equal(second.heard[0].seconds, dear.seconds)


@pytest.mark.parametrize("nodes", [0, 1, 3])
@pytest.mark.parametrize("prune", [everything, what_pays])
def test_a_tree_keeps_to_its_budget(prune, nodes):
    combined = Combined([Told([[3, 4], [5, 6]]), Told([[7, 8]])], prune=prune)
    for tree in combined.propose(contexts(1, 2), Budget(nodes, BUDGET.seconds)):
        assert len(tree) - 1 == nodes


def test_only_what_pays_is_kept_where_nodes_cost():
    good, bad = Told([[3]], score=0.9), Told([[4], [5]], score=0.1)
    dear = Budget(63, 1 + 0.3 * np.arange(64))
    assert sources(Combined([good, bad], prune=what_pays).propose(contexts(7), dear)[0]).keys() == {
        (3,)
    }
    assert len(Combined([good, bad], prune=everything).propose(contexts(7), dear)[0]) == 4


# Side by side


class Meeting(Told):
    """Proposes once all others who come to the barrier are proposing too."""

    def __init__(self, barrier, paths):
        super().__init__(paths)
        self.barrier = barrier

    def propose(self, contexts, budget):
        self.barrier.wait(timeout=60)
        return super().propose(contexts, budget)


def test_a_lookup_and_a_model_run_at_the_same_time():
    barrier = threading.Barrier(2)
    drafters = [Meeting(barrier, [[3, 4]]), Meeting(barrier, [[5]])]
    combined = Combined(drafters, prune=everything, ask=AtOnce())
    for _ in range(3):
        (tree,) = combined.propose(contexts(7), BUDGET)
        assert sources(tree).keys() == {(3,), (3, 4), (5,)}


@pytest.mark.parametrize("prune", [everything, what_pays])
def test_at_once_and_in_turn_find_the_same(prune):
    drafters = [Told([[3, 4], [6]], "a"), Told([[3, 9], [8]], "b"), Told([[3, 4, 5]], "c", 0.7)]
    found = [
        Combined(drafters, prune=prune, ask=ask).propose(contexts(7, 1), BUDGET)
        for ask in (in_turn, AtOnce())
    ]
    for one, other in zip(*found, strict=True):
        assert sources(one) == sources(other)
        np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_goes_wrong_on_either_side_reaches_the_caller(wrong):
    """And the next round is as good as any."""
    drafters, ask = [Told([[3]]), Told([[4]])], AtOnce()
    combined = Combined(drafters, prune=everything, ask=ask)
    drafters[wrong].propose = Mock(side_effect=InputError("the disk is gone"))
    with pytest.raises(InputError, match="the disk is gone"):
        combined.propose(contexts(7), BUDGET)
    del drafters[wrong].propose
    assert len(combined.propose(contexts(7), BUDGET)[0]) == 3


def test_a_lookup_is_over_when_the_model_fails():
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    class Slow(Told):
        def propose(self, contexts, budget):
            begun.set()
            go_on.wait(timeout=60)
            over.set()
            return super().propose(contexts, budget)

    class Failing(Told):
        def propose(self, contexts, budget):
            begun.wait(timeout=60)
            threading.Timer(0.05, go_on.set).start()
            raise InputError("out of memory")

    with pytest.raises(InputError, match="out of memory"):
        AtOnce()([Slow([[3]]), Failing([[4]])], contexts(7), BUDGET)
    assert over.is_set()


def test_no_thread_outlives_its_drafter():
    threads = set()

    class Noted(Told):
        def propose(self, contexts, budget):
            threads.add(threading.current_thread())
            return super().propose(contexts, budget)

    combined = Combined([Noted([[3]]), Noted([[4]])], prune=everything, ask=AtOnce())
    combined.propose(contexts(7), BUDGET)
    combined.propose(contexts(7), BUDGET)
    [thread] = threads - {threading.current_thread()}  # one, kept from round to round
    del combined
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.parametrize("draft", ["casd", "rasd-pld"])
def test_methods_that_run_their_model_anyway_look_up_beside_it(helper, draft, monkeypatch):
    threads = set()
    propose = LookupDrafter.propose

    def noted(self, contexts, budget):
        threads.add(threading.current_thread())
        return propose(self, contexts, budget)

    monkeypatch.setattr(LookupDrafter, "propose", noted)
    drafter, (context,) = make_drafter(draft, DraftResources(helper)), contexts(7)
    drafter.start(context)
    drafter.propose([context], BUDGET)
    drafter.finish(0)
    assert len(threads) == 1
    assert threading.current_thread() not in threads


# RASD: a model guides retrieval


class Guide(Told):
    """A model that holds its first tokens likely, and some more that it did not draft."""

    def __init__(self, paths, *more):
        super().__init__(paths, "model", 0.5)
        self.likely = [path[0] for path in paths] + list(more)

    def first_tokens(self, sequence):
        assert sequence == 0
        return self.likely


def guided(guide, prompt, tokens, **options):
    retrieval = LookupDrafter(CopyIndex, as_many_as_fit, nodes=20, calibrated=False)
    prune = GuidedByModel([retrieval], guide, **options)
    combined = Combined([retrieval, guide], prune=prune)
    context = DraftContext(0, prompt, [(0, len(prompt))], tokens=tokens)
    combined.start(context)
    return sources(combined.propose([context], BUDGET)[0])


@pytest.mark.parametrize(("likely", "kept"), [([3], True), ([8, 3], True), ([8], False)])
def test_retrieved_branches_stay_if_the_model_holds_their_first_token_likely(likely, kept):
    found = guided(Guide([[2, 3]], *likely), [60, 61, 3, 4], [60, 61])
    branch = {(3,): "prompt", (3, 4): "prompt", (3, 4, 60): "output", (3, 4, 60, 61): "output"}
    assert found == {(2,): "model", (2, 3): "model"} | (branch if kept else {})


def test_a_branch_that_the_model_goes_along_with_is_from_both():
    found = guided(Guide([[3, 9]]), [60, 61, 3, 4], [60, 61])
    assert found[3,] == "both"
    assert (found[3, 4], found[3, 9]) == ("prompt", "model")


def test_retrieval_that_finds_nothing_is_asked_again_behind_the_models_guesses():
    """61 alone is no match of two tokens; 61 and a guess are."""
    prompt = [70, 61, 3, 4, 5]
    found = guided(Guide([[2], [3]]), prompt, [99, 61])
    assert found == {(2,): "model", (3,): "model", (3, 4): "prompt", (3, 4, 5): "prompt",
                     (3, 4, 5, 99): "output", (3, 4, 5, 99, 61): "output"}  # fmt: skip
    assert guided(Guide([[2], [3]]), prompt, [99, 61], levels=0).keys() == {(2,), (3,)}


def test_it_is_asked_again_level_by_level():
    prompt = [70, 3, 4, 5, 6]
    found = guided(Guide([[2], [3, 4]]), prompt, [99, 61])
    assert found[3, 4, 5] == found[3, 4, 5, 6] == "prompt"
    assert (3, 4, 5) not in guided(Guide([[2], [3, 4]]), prompt, [99, 61], levels=1)
    assert (3, 4, 5) not in guided(Guide([[2, 7], [3, 4]]), prompt, [99, 61], width=1)


def test_what_is_found_behind_a_guess_is_as_likely_as_both_together():
    retrieval = LookupDrafter(CopyIndex, as_many_as_fit, nodes=20, calibrated=False)
    context = DraftContext(0, [61, 3, 4], [(0, 3)], tokens=[99, 61])
    retrieval.start(context)
    tree = retrieval.propose_after(context, [3], [0.5], 20)
    assert tree.scores[0] == 1
    assert tree.scores[1] == 0.5
    assert 0 < tree.scores[2] < 0.5
    assert len(retrieval.propose_after(context, [8], [0.5], 20)) == 1


def test_a_model_that_did_not_draft_prunes_nothing(helper):
    retrieval, model = Told([[3, 4]], "a"), ModelDrafter(
        helper, TreeGrowth(2, 4), nodes=9, adaptive=False
    )  # fmt: skip
    combined = Combined([retrieval, model], prune=GuidedByModel([], model))
    context = DraftContext(0, [40] * 600, [], tokens=[7])  # takes more than a round to read
    combined.start(context)
    assert sources(combined.propose([context], BUDGET)[0]) == {(3,): "a", (3, 4): "a"}
    combined.finish(0)


def test_a_sure_copy_spares_the_draft_model_its_time():
    """What the lookup promises leaves nothing for a draft model to gain."""
    helper, budget = tiny_helper(cost=0.3), Budget(63, StepCosts.read(REFERENCE).at(128)[1:])
    drafter = make_drafter("auto", DraftResources(helper))
    text = list(range(40, 100))
    context = DraftContext(0, text, [(0, len(text))], tokens=text[:12])
    drafter.start(context)
    drafter.propose([context], budget)  # reads the prompt
    context.tokens.append(text[12])
    drafter.observe([TargetStep(0, [text[12]])])
    before = helper.model.steps
    (tree,) = drafter.propose([context], budget)
    assert helper.model.steps == before
    assert tree.tokens[1] == text[13]
    drafter.finish(0)


# Names


def test_names_joined_by_plus_are_one_drafter(helper):
    engine = tiny_engine(helper=helper)
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
        ("nobody", "unknown draft 'nobody'"),
        ("copy+nobody", "unknown draft 'nobody'"),
        ("copy+store:some/where", "datastore"),
    ],
)
def test_a_name_that_means_nothing_is_refused_in_one_line(draft, message):
    engine = tiny_engine()
    with pytest.raises(InputError, match=message) as refused:
        engine.generate("the end", draft=draft)
    assert "\n" not in str(refused.value)


def test_a_cut_keeps_the_names_of_sources():
    tree = Combined([Told([[3]], "a"), Told([[4]], "b")], prune=everything).propose(
        contexts(7), BUDGET
    )[0]
    assert {keep(tree, [0, node]).source(1) for node in (1, 2)} == {"a", "b"}
