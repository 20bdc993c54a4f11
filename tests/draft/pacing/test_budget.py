"""How many nodes pay, in tables; and the budget follows copying and free text."""

import numpy as np
import pytest

from graft.assemble.drafters import make_drafter
from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.budget import best_by_cost, up_to_limit
from graft.models.language_model import TargetStep
from graft.tree.draft_tree import chain, root_only

FREE = np.array([1, 1, 1, 1.0])  # more nodes cost nothing
DEAR = np.array([1, 2, 3, 4.0])  # every node costs a whole step
STEP = np.array([1, 1, 1, 3.0])  # three nodes are free, the fourth is not


@pytest.mark.parametrize(
    ("scores", "seconds", "nodes"),
    [
        ([], FREE, 0),
        ([0.1, 0.1, 0.1], FREE, 3),
        ([0.1, 0.0, 0.0], FREE, 1),  # of equal rates the smaller tree
        ([0.9, 0.9, 0.9], DEAR, 0),
        ([0.9, 0.8, 0.7], STEP, 2),
        ([0.2, 0.1], np.array([1, 1.1, 1.3]), 1),  # 1/1, 1.2/1.1, 1.3/1.3
        ([0.05, 1.0], np.array([1, 1.1, 1.2]), 2),  # looks past a node that does not pay alone
        ([1.0, 1.0, 1.0, 1.0, 1.0], FREE, 3),  # no more than was measured
    ],
)
def test_as_many_nodes_as_raise_the_rate(scores, seconds, nodes):
    assert best_by_cost([np.array(scores)], Budget(63, seconds)) == [nodes]


@pytest.mark.parametrize(("scores", "nodes"), [([0.4], 0), ([0.6], 1), ([0.3, 0.3], 2)])
def test_what_any_guess_takes_besides_must_pay_too(scores, nodes):
    assert best_by_cost([np.array(scores)], Budget(63, FREE, overhead_seconds=0.5)) == [nodes]


def test_what_guesses_take_besides_is_paid_once():
    budget = Budget(63, DEAR, overhead_seconds=0.5)
    assert budget.after([root_only(1)]).overhead_seconds == 0.5
    left = budget.after([chain([1, 2])])
    assert left.overhead_seconds == 0
    assert left.seconds.tolist() == [2.5, 3.5, 4.5]


def test_the_budget_caps_what_pays_and_what_fits():
    scores = np.array([0.9, 0.8, 0.7])
    assert best_by_cost([scores], Budget(63, FREE)) == [3]
    assert best_by_cost([scores], Budget(2, FREE)) == [2]
    assert best_by_cost([scores], Budget(63, DEAR)) == [0]
    assert up_to_limit([scores], Budget(63, DEAR)) == [3]
    assert up_to_limit([scores], Budget(2, DEAR)) == [2]
    for choose in (up_to_limit, best_by_cost):
        assert choose([scores], Budget(0, FREE)) == [0]


def test_one_tree_is_weighed_as_it_would_be_beside_an_empty_one():
    draw, nothing, kept = np.random.default_rng(0), np.empty(0, np.float32), set()
    for _ in range(300):
        scores = -np.sort(-draw.random(draw.integers(0, 12)).astype(np.float32))
        seconds = 1 + np.cumsum(draw.random(draw.integers(2, 16))) * draw.choice([0.02, 0.2])
        budget = Budget(int(draw.integers(1, 12)), seconds, 1, draw.choice([0.0, 0.3]))
        alone = best_by_cost([scores], budget)
        assert alone == best_by_cost([scores, nothing], budget)[:1]
        kept.add(alone[0])
    assert len(kept) > 8


def test_in_a_batch_the_likeliest_nodes_of_all_trees_are_taken():
    scores = [np.array([0.9, 0.5]), np.array([]), np.array([0.8, 0.7, 0.1])]
    seconds = np.array([1, 1, 1, 1, 3.0, 9, 9])  # three more nodes are free
    assert best_by_cost(scores, Budget(63, seconds, base_tokens=3)) == [1, 0, 2]
    assert up_to_limit(scores, Budget(63, seconds, base_tokens=3)) == [2, 0, 3]


def test_what_pays_for_one_may_not_pay_when_many_wait():
    scores, seconds = [np.array([0.3])], np.array([1, 1.2])
    assert best_by_cost(scores, Budget(63, seconds, base_tokens=1)) == [1]  # 1.3 / 1.2
    assert best_by_cost(scores, Budget(63, seconds, base_tokens=8)) == [0]  # 8.3 / 1.2 < 8 / 1


def test_a_gain_that_drafting_itself_would_eat_is_not_taken():
    assert best_by_cost([np.array([0.02])], Budget(63, FREE)) == [0]
    assert best_by_cost([np.array([0.04])], Budget(63, FREE)) == [1]


SECONDS = 1.1 + 0.1 * np.arange(64)  # a node costs a tenth of a step


def proposed_nodes(context, drafter, coming):
    """Nodes of every step while the target writes `coming`, taking what was guessed right."""
    counts = []
    while coming:
        (tree,) = drafter.propose([context], Budget(63, SECONDS))
        children, node, taken = tree.children, 0, 0
        while taken < len(coming) - 1 and coming[taken] in children[node]:
            node, taken = children[node][coming[taken]], taken + 1
        step, coming = coming[: taken + 1], coming[taken + 1 :]
        context.tokens.extend(step)
        drafter.observe([TargetStep(context.sequence, step)])
        counts.append(len(tree) - 1)
    return counts


def test_the_node_budget_falls_in_free_text_and_recovers_when_copying_returns():
    rng = np.random.default_rng(0)
    document = rng.integers(100, 400, 600).tolist()
    # Free text in the document's words, in another order: every step has a short, wrong match.
    free = rng.choice(document, 60).tolist()
    context = DraftContext(0, document, [(0, 600)], tokens=[document[50]])
    drafter = make_drafter("auto")
    drafter.start(context)
    first = proposed_nodes(context, drafter, document[51:171])
    middle = proposed_nodes(context, drafter, free)
    last = proposed_nodes(context, drafter, document[300:420])
    copying = max(first)
    assert copying >= 4
    assert max(middle[10:]) <= 2  # fallen within ten steps, though matches are found all along
    assert np.mean(middle[10:]) < 0.5
    assert max(last[:10]) >= copying - 1  # and back within ten
