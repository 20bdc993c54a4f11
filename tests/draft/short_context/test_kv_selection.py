"""Selected KV cache rows, compared with attention computed by transformers, head by head."""

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_network

from graft.draft.drafter import DraftContext
from graft.draft.short_context.kv_selection import (
    LONGSPEC_WINDOW,
    MAGICDEC,
    MAGICDEC_SNAPKV,
    RAPID_WINDOW,
    TRIFORCE,
    Chunks,
    SnapKV,
    Window,
)
from graft.draft.short_context.streaming import ViewCache
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward

PROMPT = np.random.default_rng(4).integers(5, 100, 90).tolist()
LAYERS, GROUPS, HEADS = 2, 2, 2


@pytest.fixture(scope="module")
def network():
    return tiny_network(initializer_range=0.4)


@pytest.fixture(scope="module")
def prefilled(network):
    """A model that has prefilled the prompt, and the rows."""
    forward, _ = build_forward(network, name="tiny", kind="lean")
    model = LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048)
    extent = model.open(len(PROMPT) + 16)
    model.prefill(extent, PROMPT)
    return model, extent


def test_the_papers_numbers():
    assert MAGICDEC.sinks + MAGICDEC.latest == MAGICDEC_SNAPKV.budget == 257
    assert (LONGSPEC_WINDOW.sinks, LONGSPEC_WINDOW.latest) == (32, 1024)
    assert RAPID_WINDOW.sinks + RAPID_WINDOW.latest == 4096
    assert (TRIFORCE.budget, TRIFORCE.size, TRIFORCE.gathered) == (4096, 8, 4096)


def test_window_has_the_first_and_the_latest_tokens():
    window = Window(3, 10)
    assert window.spans(5, 40) == ((0, 3), (30, 40))
    assert [window.leaves_out(5, total) for total in (12, 13, 14)] == [False, False, True]


def test_snapkv_selects_the_rows_that_the_prompts_end_attends_to(network, prefilled):
    rule = SnapKV(budget=20, observed=8, kernel=5)
    chosen = rule.choose(*prefilled, PROMPT)
    with torch.no_grad():
        reported = network(torch.tensor([PROMPT]), output_attentions=True).attentions
    for layer, weights in enumerate(reported):
        for head in range(HEADS):
            group = weights[0, GROUPS * head : GROUPS * (head + 1), -8:, :-8].sum((0, 1))
            padded = torch.nn.functional.pad(group, (2, 2))
            pooled = torch.stack([padded[i : i + 5].sum() for i in range(len(group))])
            best = sorted(pooled.topk(12).indices.tolist())
            assert chosen[layer, head].tolist() == best
    assert chosen.shape == (LAYERS, HEADS, rule.gathered)
    assert len({tuple(rows.tolist()) for rows in chosen.flatten(0, 1)}) > 1
    assert rule.spans(90, 95) == ((82, 95),)


def test_chunks_have_the_best_mean_keys_for_the_last_query(prefilled):
    rule = Chunks(budget=21, size=4)
    model, extent = prefilled
    chosen = rule.choose(model, extent, PROMPT)
    view = model.look(extent, 1)
    view.look((0, 89))
    queries = model.queries(view, PROMPT[-1:])
    model.close(view)
    keys = model.arena.storage.read(extent.rows)[0]  # [L, K, n, D]
    for layer in range(LAYERS):
        for head in range(HEADS):
            means = keys[layer, head, :88].reshape(22, 4, -1).mean(1)
            query = queries[layer, GROUPS * head : GROUPS * (head + 1), 0]
            scores = (query @ means.T).mean(0)
            best = sorted({0, *(1 + scores[1:].topk(4).indices).tolist()})
            expected = [4 * chunk + i for chunk in best for i in range(4)]
            assert chosen[layer, head].tolist() == expected
    assert rule.spans(90, 95) == ((88, 95),)


@pytest.mark.parametrize("rule", [SnapKV(budget=20, observed=8), Chunks(budget=20, size=4)])
def test_selected_rows_are_gathered_once_and_freed(prefilled, rule):
    model, base = prefilled
    taken, context = model.arena.taken, DraftContext(0, PROMPT, [], tokens=[7])
    cache = ViewCache(model, context, selection=rule)
    assert not cache.prepare(3, 3)  # no rows of the target yet
    cache.base = base
    assert cache.prepare(3, 3)
    steps = model.steps
    assert cache.prepare(3, 3)
    assert model.steps == steps
    chosen, found = rule.choose(model, base, PROMPT), cache.chosen
    rows = model.arena.storage.read(found.start + np.arange(rule.gathered))
    whole = model.arena.storage.read(base.rows)
    for layer in range(LAYERS):
        for head in range(HEADS):
            expected = whole[:, layer, head, chosen[layer, head]]
            torch.testing.assert_close(rows[:, layer, head], expected)
    visible = rule.gathered + 90 - rule.spans(90, 90)[0][0]
    assert (cache.visible, cache.uncached, cache.prefilling) == (visible, 1, False)
    cache.close()
    assert model.arena.taken == taken
