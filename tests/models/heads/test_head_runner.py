"""Heads at work against their own training forward over the plain sequence."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from tiny import tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.models.heads.files import read_head, write_head
from graft.models.heads.load import run_head
from graft.models.heads.longspec_runner import into_cache_order
from graft.models.heads.panel_linear import PanelLinear
from graft.models.heads.row_masks import chain_masks, shift_mask, window_mask
from graft.models.heads.runner import Text

TEXT = torch.randint(3, 128, (90,), generator=torch.Generator().manual_seed(5)).tolist()
# Levels of guesses: their tokens, and the number of each one's parent in the level before.
LEVELS = [([7, 8, 9], [0, 0, 0]), ([10, 11], [2, 0]), ([12, 13, 14], [1, 1, 0])]
PATHS = [[7], [8], [9], [9, 10], [7, 11], [7, 11, 12], [7, 11, 13], [9, 10, 14]]
WINDOW = 32


@pytest.fixture(scope="module", params=["panels", "lean"])
def model(request):
    return tiny_engine(tiny_network(), forward=request.param).model


VARIANTS = {
    "longspec": {"window": WINDOW},
    "longspec of two layers": {"window": WINDOW, "cross_layers": 2},
    "eagle3 with the target's output": {"own_output": False, "kv_heads": 2},
    "eagle3 with a normed residual": {"norm_before_residual": True},
    "mtp with biases and head norms": {"attention_bias": True, "head_norms": True},
    "mtp with a gate": {"gated": True, "head_norms": True, "rotary_share": 0.5},
}


@pytest.fixture(scope="module", params=[*KINDS, *list(VARIANTS)[1:]])
def runner(request, model):
    kind, more = request.param.split(" ", 1)[0], VARIANTS.get(request.param, {})
    head = tiny_head(kind, tiny_network(), knows=False, draft_vocabulary=50, **more)
    return at_work(head, model)


def eagle3():
    return tiny_head("eagle3", tiny_network(), knows=False, draft_vocabulary=50)


def at_work(head, model):
    return run_head(head, model, packed=type(model.forward).__name__ == "PanelForward")


@pytest.fixture
def target(model):
    """The target has read the text but for its last token; its features."""
    extent = model.open(len(TEXT))
    model.keep_features([0, 1, -1])
    model.prefill(extent, TEXT[:-1])
    states = {each: model.features(range(len(TEXT) - 1), [each]) for each in (0, 1, -1)}
    yield extent, lambda layers: torch.cat([states[each] for each in layers], -1)
    model.close(extent)


def read(runner, features, pieces):
    """The text in pieces of these sizes, each on top of those before."""
    memory, done = runner.open(), 0
    features = features and features(runner.config.feature_layers or (-1,))
    memory.begin(0)
    for size in pieces:
        if runner.window is None:
            text = Text(memory, TEXT[done + 1 :][:size], features[done : done + size])
        else:
            text = Text(memory, TEXT[done:][:size])
        runner.read([text])
        done += size
    return memory


def pieces_of(runner):
    return [3, 30, 1, 25, 30] if runner.window is None else [3, 30, 1, 25, 31]


@torch.no_grad()
def expected(runner, target, path, head=None):
    """The head's own forward over the text and a path of guesses, as in training; `head` is one
    that nobody runs."""
    head = head or runner.head
    extent, features = target
    features = features and features(runner.config.feature_layers or (-1,))
    tokens, depth = [*TEXT, *path], len(path)
    documents = torch.zeros(1, len(tokens), dtype=torch.int64)
    positions = torch.arange(len(tokens))[None]
    embeddings = runner.model.forward.embed(torch.tensor([tokens]))
    if runner.window is None:
        unknown = torch.full((1, depth, features.shape[1]), 9.0)
        fed = torch.cat([features[None], unknown], 1)
        masks = chain_masks(documents[:, 1:], depth + 1)
        return head(embeddings[:, 1:], fed, positions[:, :-1], masks)[-1, 0, -1]
    layers = runner.config.cross_layers
    rows = runner.model.arena.storage.read(extent.rows)[:, -layers:]
    if head is not runner.head:  # as it was trained: the last layer's first
        rows = rows.flip(1)
    rows = rows.flatten(1, 2)
    memory = torch.cat([rows, torch.full((2, 2 * layers, depth + 1, 16), 9.0)], 2)
    masks = window_mask(documents, head.config.window), [shift_mask(documents, depth + 1)]
    return head(embeddings, tuple(memory[:, None]), positions, *masks)[0, 0, -1]


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-3)


def test_draft_levels_equal_the_training_forward(runner, target):
    memory = read(runner, target[1], pieces_of(runner))
    working = runner.round([memory], [target[0]])
    close(working.root()[0, 0], expected(runner, target, []))
    outputs = []
    for tokens, above in LEVELS:
        outputs += working.level(torch.tensor([tokens]), torch.tensor([above]))[0]
    for output, path in zip(outputs, PATHS, strict=True):
        close(output, expected(runner, target, path))
    runner.close(memory)
    assert runner.arena.taken == 0


def test_every_head_attends_to_the_layer_it_was_trained_for(tmp_path):
    """Three layers, in whatever order a runner keeps them; the file's is training's."""
    network = tiny_network(layers=4)
    model = tiny_engine(network, forward="lean").model
    made = tiny_head("longspec", network, knows=False, window=WINDOW, cross_layers=3)
    write_head(tmp_path / "head", made, dtype="fp32")
    runner = run_head(read_head(tmp_path / "head"), model)
    extent = model.open(len(TEXT))
    model.prefill(extent, TEXT[:-1])
    memory = read(runner, None, pieces_of(runner))
    found = runner.round([memory], [extent]).root()[0, 0]
    torch.testing.assert_close(found, expected(runner, (extent, None), [], made))
    assert not torch.allclose(found, expected(runner, (extent, None), [], swapped(made)), 1e-3)


def swapped(head):
    """The same head with the layers it looks at in the opposite order."""
    into_cache_order(head)
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_one_head_makes_two_runners_that_agree_and_stays_as_it_is(kind, model, target):
    more = {"window": WINDOW, "cross_layers": 2} if kind == "longspec" else {}
    head = tiny_head(kind, tiny_network(), knows=False, **more)
    before, roots = deepcopy(head.state_dict()), []
    for runner in (at_work(head, model), at_work(head, model)):
        memory = read(runner, target[1], pieces_of(runner))
        roots.append(runner.round([memory], [target[0]]).root())
        runner.close(memory)
    assert torch.equal(*roots)
    after = head.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_chain_may_be_long(runner, target):
    memory = read(runner, target[1], pieces_of(runner))
    working, path = runner.round([memory], [target[0]]), list(range(20, 32))
    working.root()
    for token in path:
        output = working.level(torch.tensor([[token]]), torch.tensor([[0]]))[0, 0]
    close(output, expected(runner, target, path))
    runner.close(memory)


def test_sequences_share_rounds_and_nothing_else(runner, model, target):
    other = model.open(8)
    model.prefill(other, TEXT[40:46])
    short = runner.open()
    short.begin(0)
    layers = runner.config.feature_layers
    features = model.features(range(6), layers) if layers else None
    runner.read([Text(short, TEXT[41:47] if runner.window is None else TEXT[40:47], features)])
    long = read(runner, target[1], pieces_of(runner))
    both = runner.round([short, long], [other, target[0]])
    alone = [
        runner.round([short], [other]),
        runner.round([long], [target[0]]),
    ]
    close(both.root(), torch.cat([each.root() for each in alone]))
    for tokens, above in LEVELS:
        tokens, above = torch.tensor([tokens, tokens[::-1]]), torch.tensor([above, above[::-1]])
        found = both.level(tokens, above)
        close(found[:1], alone[0].level(tokens[:1], above[:1]))
        close(found[1:], alone[1].level(tokens[1:], above[1:]))
    for memory in (short, long):
        runner.close(memory)
    model.close(other)


def test_logits_are_those_of_the_output_layer_for_the_drafted_ids(runner):
    outputs = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1))
    weight = tiny_network().lm_head.weight[runner.tokens].detach()
    if runner.config.own_output:
        weight = eagle3().lm_head.weight.detach()
    if type(runner.output) is PanelLinear:  # the CPU keeps 16 bits
        weight = weight.bfloat16().float()
    expected = outputs @ weight.T
    close(runner.logits(outputs), expected)


def kept_rows(runner, memory):
    """Keys and values of all that is kept of a text."""
    count = len(TEXT) - 1 if runner.window is None else WINDOW
    return runner.storage.read(memory.extent.start + np.arange(count))


def test_rows_after_many_pieces_are_those_of_a_fresh_pass(runner, target):
    """Pieces of every size, as accepted drafts come, against a few large ones."""
    last = 0 if runner.window is None else 1
    small = read(runner, target[1], [*[1, 2, 3, 4, 5] * 5, 14 + last])
    large = read(runner, target[1], [30, 30, 29 + last])
    close(kept_rows(runner, small), kept_rows(runner, large))
    for memory in (small, large):
        runner.close(memory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forward", ["panels", "lean"])
def test_16_bits_are_enough_for_weights_but_not_for_positions(kind, forward):
    network = tiny_network().to(torch.bfloat16)
    model = tiny_engine(network, forward=forward).model
    head = tiny_head(kind, network)
    angles = head.rotary.frequencies.clone()
    runner = run_head(head, model, packed=forward == "panels")
    assert torch.equal(runner.head.rotary.frequencies, angles)
    assert runner.dtype == (torch.float32 if forward == "panels" else torch.bfloat16)
    memory, extent = runner.open(), model.open(16)
    model.prefill(extent, TEXT[:8])
    given = (
        [Text(memory, TEXT[:8])]
        if runner.window
        else [Text(memory, TEXT[1:9], model.features(range(8), runner.config.feature_layers))]
    )
    runner.read(given)
    logits = runner.logits(runner.round([memory], [extent]).root())
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
