"""Looking at parts of a sequence's rows, and at what its tokens attend to."""

from functools import cache

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, tiny_network

from graft.kernels.attention_weights import causal_weights, chunk_scores
from graft.models.language_model import LanguageModel
from graft.models.load import build_forward
from graft.models.storage import PanelStorage, RowStorage
from graft.tree.draft_tree import chain, from_paths

TEXT = np.random.default_rng(0).integers(5, 100, 700).tolist()
FORWARDS = ["panels", "lean", "hook", "graphed", "invariant"]
# Interpreted kernels take their time: one test of them is enough for every day.
SLOWLY = [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "graphed")) for kind in FORWARDS]
TREE = from_paths(9, [[3, 4, 5], [3, 6], [7]])


@cache
def model_of(kind, /, **options):
    """Made once: one that is interpreted takes a while."""
    network = tiny_network(**options)
    if kind == "graphed":
        pytest.importorskip("triton", reason="Triton is not installed")
        if torch.cuda.is_available():
            pytest.skip("compiled there: pytest -m gpu")
    invariant = kind == "invariant"
    forward, _ = build_forward(
        network, name="tiny", kind="lean" if invariant else kind, invariant=invariant
    )
    if kind == "graphed":
        forward.sizes = (2, 8)  # interpreted kernels take long over padding
    return LanguageModel(forward, vocabulary=VOCABULARY, context_length=2048)


def read(model, text, prefix=None, shared=None):
    extent = model.open(len(text) + 32, prefix, shared)
    model.prefill(extent, text)
    return extent


@pytest.mark.parametrize("kind", [kind for kind in FORWARDS if kind != "graphed"])
def test_a_view_of_all_tokens_gives_the_sequences_logits(kind):
    model = model_of(kind)
    base = read(model, TEXT[:40])
    view = model.look(base, 16)
    view.look((0, 40))
    (expected,), (seen,) = (model.score([each], [TREE]) for each in (base, view))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-4)
    assert view.total == base.total == 40


@pytest.mark.parametrize("kind", SLOWLY)
def test_a_view_stands_where_its_sequence_goes_on_behind_positions_left_out(kind):
    model = model_of(kind)
    base = read(model, TEXT[:90])
    base.skipped = 40
    view = model.look(base, 16)
    view.look((0, 90))
    assert view.position == base.position == 130
    (expected,), (seen,) = (model.score([each], [TREE]) for each in (base, view))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "window"),
    [*((kind, None) for kind in FORWARDS[1:]), ("lean", 12), ("hook", 12), ("invariant", 12)],
)
def test_all_forwards_see_the_same_parts(kind, window, monkeypatch):
    """Sinks and the latest tokens, level by level; of a model with a sliding window too."""
    more = {"kind": "mistral", "sliding_window": window} if window else {}
    if kind == "graphed":
        more = {"hidden": 32, "heads": 2, "kv_heads": 1, "layers": 1}
        # Interpreted kernels take long over padding.
        monkeypatch.setattr("graft.models.forward_graphed.GraphedForward.sizes", (2, 8, 24))
        monkeypatch.setattr("graft.models.forward_graphed.TASKS", 4)
    results = []
    for model in (model_of("panels", **more), model_of(kind, **more)):
        view = model.look(read(model, TEXT[:24]), 16)
        view.look((0, 3), (10, 24))
        logits = model.score([view], [chain([8, 11])])[0].clone()  # good until the next step
        model.commit(view, [0, 1])
        results.append(torch.cat([logits, *model.score([view], [TREE])]))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_what_is_left_out_is_not_seen_and_what_is_seen_keeps_its_position():
    """A view is the same text with other tokens in the part that is left out."""
    model = model_of("panels")
    seen = []
    for middle in (TEXT[100:140], TEXT[200:240]):
        base = read(model, [*TEXT[:4], *middle, *TEXT[50:60]])
        view = model.look(base, 4)
        view.look((0, 4))
        seen.append(model.score([view], [chain([9])])[0])
        assert view.placed[1] == [0, 4]
        view.look((0, 4), (44, 54))
        assert (view.total, view.placed[1], view.sees) == (54, [0, 44, 54], 14)
    torch.testing.assert_close(*seen)


def test_segments_follow_a_base_that_builds_on_others_and_moves():
    model = model_of.__wrapped__("panels")  # nobody else has rows in it
    prefix = read(model, TEXT[:512])
    base = model.open(16, prefix, 256)
    model.prefill(base, TEXT[256:300])
    view = model.look(base, 16)
    view.look((0, 4), (250, 300))
    rows = view.rows
    assert view.segments[:3] == [(prefix.start, 4), (prefix.start + 250, 6), (base.start, 44)]
    assert view.placed[1] == [0, 250, 256, 300]
    before = model.arena.storage.read(rows).clone()
    start = base.start
    model.arena.ensure(base, 4096)
    assert base.start != start
    torch.testing.assert_close(model.arena.storage.read(view.rows), before)
    model.close(view)
    model.close(base)
    model.close(prefix)
    assert model.arena.taken == 0


@pytest.mark.parametrize("kind", SLOWLY)
def test_queries_give_the_weights_of_the_models_own_attention(kind):
    """As transformers' eager attention reports them, in every layer."""
    network = tiny_network(initializer_range=0.3)
    model, text = model_of(kind, initializer_range=0.3), TEXT[:40]
    base = read(model, text)
    view = model.look(base, 8)
    view.look((0, 32))
    queries = model.queries(view, text[32:])
    with torch.no_grad():
        reported = network(torch.tensor([text]), output_attentions=True).attentions
    for layer, expected in enumerate(reported):
        keys = model.arena.storage.keys_of(layer, base.segments)
        weights = causal_weights(queries[layer], keys)
        torch.testing.assert_close(weights, expected[0, :, 32:], atol=1e-4, rtol=1e-3)
    assert base.total == 40


def test_scores_of_chunks_are_products_with_mean_keys():
    rng = np.random.default_rng(1)
    queries, keys = (torch.from_numpy(rng.standard_normal(s)) for s in ((4, 2, 8), (2, 11, 8)))
    scores = chunk_scores(queries.float(), keys.float(), 3)
    assert scores.shape == (4, 2, 3)
    expected = queries[3, 1] @ keys[1, 3:6].mean(0)
    assert float(scores[3, 1, 1]) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("kind", [RowStorage, PanelStorage])
def test_rows_are_gathered_by_layer_and_head(kind):
    sizes = (3, 2, 16)
    more = (torch.float32, torch.device("cpu")) if kind is RowStorage else ()
    storage = kind(*sizes, *more)
    storage.resize(64)
    content = torch.randn(2, 3, 2, 64, 16)
    storage.write(np.arange(64), content)
    source, target = torch.randint(0, 32, (3, 2, 7)), 40 + np.arange(7)
    storage.gather(source, target)
    found = storage.read(target)
    for layer in range(3):
        for head in range(2):
            expected = content[:, layer, head, source[layer, head]]
            torch.testing.assert_close(found[:, layer, head], expected)
    keys = storage.keys_of(1, [(3, 4), (10, 2)])
    torch.testing.assert_close(keys, content[0, 1][:, [3, 4, 5, 6, 10, 11]])
