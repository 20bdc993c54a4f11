"""Lookup drafts: from content only, never across borders, each node with its source."""

import numpy as np
import pytest
from tiny import tiny_tokenizer

from graft.assemble.copies import adaptive_copies, lookups
from graft.assemble.drafters import make_drafter
from graft.assemble.resources import DraftResources
from graft.decode.text import Encoder
from graft.draft.copies import pooled
from graft.draft.copies.calibration import PRIOR
from graft.draft.drafter import Budget, DraftContext
from graft.match.pool import Pools
from graft.models.language_model import TargetStep

PRESETS = ["pld", "copy", "igpg", "auto"]
TEXT = list(range(1, 21))  # PLD copies only where all its ten tokens are there
BUDGET = Budget(63, np.linspace(1, 1.1, 64))  # nodes are all but free


def propose(draft, context, budget=BUDGET):
    drafter = make_drafter(draft)
    drafter.start(context)
    return drafter.propose([context], budget)[0]


def drafted(tree):
    return set(tree.tokens[1:].tolist())


@pytest.mark.parametrize("draft", PRESETS)
def test_continues_as_the_text_did_before(draft):
    context = DraftContext(0, TEXT, [(0, len(TEXT))], tokens=[1, 2, 3])
    tree = propose(draft, context)
    assert tree.tokens[:3].tolist() == [3, 4, 5]
    assert {tree.source(node) for node in range(1, len(tree))} == {"prompt"}


@pytest.mark.parametrize("pools", [None, Pools()])
@pytest.mark.parametrize(("tokens", "dear", "expected"), [
    ([1, 2, 3], 1.0, True), ([1, 2, 3], 1000.0, False), ([99], 1.0, False),
])  # fmt: skip
def test_it_is_known_whether_there_is_a_draft_before_it_is_asked_for(tokens, dear, expected, pools):
    context = DraftContext(0, TEXT, [(0, len(TEXT))], tokens=tokens)
    drafter = lookups(DraftResources(pools=pools))
    drafter.start(context)
    budget = Budget(63, BUDGET.seconds, overhead_seconds=dear)
    assert drafter.has_draft([context], budget) is expected
    assert (len(drafter.propose([context], budget)[0]) > 1) is expected


def test_a_pool_without_drafts_is_searched_now_and_then(monkeypatch):
    """In steps that run ahead, too."""
    context = DraftContext(0, TEXT, [(0, len(TEXT))], tokens=[99])
    drafter = lookups(DraftResources(pools=Pools()))
    drafter.start(context)
    searches = []
    monkeypatch.setattr(drafter._pool, "has_draft", lambda *_: searches.append(1))
    for _ in range(pooled.PATIENCE + 4 * pooled.INTERVAL):
        assert not drafter.has_draft([context], BUDGET)
    assert len(searches) == pooled.PATIENCE + 4


@pytest.mark.parametrize("draft", PRESETS)
def test_no_draft_without_a_match(draft):
    context = DraftContext(0, [1, 2, 3], [(0, 3)], tokens=[9])
    assert propose(draft, context).tokens.tolist() == [9]


@pytest.mark.parametrize("draft", PRESETS)
def test_drafts_do_not_cross_the_end_of_a_document(draft):
    context = DraftContext(
        0, [50, 51], [(0, 2)], documents=[TEXT[:5], TEXT[8:]], prediction=[40], tokens=[1, 2, 3]
    )
    assert drafted(propose(draft, context)) == (set() if draft == "pld" else {4, 5})


@pytest.mark.parametrize("draft", PRESETS)
def test_matches_do_not_cross_the_end_of_a_document(draft):
    context = DraftContext(0, [9], [], documents=[TEXT[:2], TEXT[4:]], tokens=[1, 2])
    assert not drafted(propose(draft, context))


@pytest.mark.parametrize(
    ("where", "source"),
    [("documents", "document"), ("prediction", "prediction"), ("prompt", "prompt")],
)
@pytest.mark.parametrize("draft", PRESETS)
def test_every_node_has_its_source(draft, where, source):
    context = DraftContext(0, [99], [(0, 1)], tokens=[1, 2, 3])
    setattr(context, where, [TEXT] if where == "documents" else TEXT)
    context.quotable = [(0, len(context.prompt))]
    tree = propose(draft, context)
    assert len(tree) > 1
    assert {tree.source(node) for node in range(1, len(tree))} == {source}


@pytest.mark.parametrize("draft", PRESETS)
def test_output_is_copied_too(draft):
    context = DraftContext(0, [99], [(0, 1)], tokens=[1])
    drafter = make_drafter(draft)
    drafter.start(context)
    for tokens in ([2, 3, 4], [*TEXT[4:], 1, 2, 3]):
        drafter.propose([context], BUDGET)
        context.tokens.extend(tokens)
        drafter.observe([TargetStep(0, tokens)])
    (tree,) = drafter.propose([context], BUDGET)
    assert tree.tokens[:3].tolist() == [3, 4, 5]
    assert tree.source(1) == "output"


@pytest.mark.parametrize("draft", PRESETS)
def test_chat_template_is_never_drafted(draft):
    encoder = Encoder(tiny_tokenizer(), 128)
    chat = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "sure"}] * 4
    encoded = encoder.prompt([*chat, {"role": "user", "content": "more"}])
    content = {token for word in ("ask", "sure", "more") for token in encoder.text(word)}
    template = encoder.text("ask<|im_end|>\n<|im_start|>assistant\n")
    for end in range(1, len(template) + 1):
        context = DraftContext(0, encoded.tokens, encoded.quotable, tokens=template[:end])
        tree = propose(draft, context)
        from_prompt = [n for n in range(1, len(tree)) if tree.source(n) == "prompt"]
        assert {int(tree.tokens[n]) for n in from_prompt} <= content


@pytest.mark.parametrize("draft", PRESETS)
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_tree_keeps_to_its_budget(draft, nodes):
    context = DraftContext(0, TEXT, [(0, len(TEXT))], tokens=[1, 2, 3])
    assert len(propose(draft, context, Budget(nodes, BUDGET.seconds))) == nodes + 1


@pytest.mark.parametrize("draft", PRESETS)
def test_sequences_are_independent(draft):
    drafter = make_drafter(draft)
    one = DraftContext(1, TEXT, [(0, 20)], tokens=[1, 2, 3])
    two = DraftContext(2, [1, 2, 3, *TEXT[7:]], [(0, 16)], tokens=[1, 2, 3])
    for context in (one, two):
        drafter.start(context)
    trees = drafter.propose([one, two], BUDGET)
    assert [tree.tokens[1] for tree in trees] == [4, 8]
    drafter.finish(1)
    drafter.finish(1)
    assert drafter.propose([two], BUDGET)[0].tokens[1] == 8


@pytest.mark.parametrize("updates", [False, True])
def test_calibration_lags_one_step_with_and_without_update_async(updates):
    """A proposal counts one step later in both cases."""
    drafter = adaptive_copies()
    context = DraftContext(0, TEXT, [(0, len(TEXT))], tokens=[1])
    drafter.start(context)
    calibration, seen = drafter._texts[0].calibration, []
    for token in (9, 2, 9, 3, 9, 4):  # every draft is rejected
        drafter.propose([context], BUDGET)
        seen.append(calibration.rates[1:].mean())
        if updates:
            drafter.update_async()
        context.tokens.append(token)
        drafter.observe([TargetStep(0, [token])])
    assert seen[0] == seen[1] == pytest.approx(PRIOR[1:].mean())
    assert all(later < earlier for earlier, later in zip(seen[1:], seen[2:], strict=False))
