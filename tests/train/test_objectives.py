"""Losses, masks, offsets and measurements against plain references."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_network, tiny_tokenizer
from torch.autograd.graph import saved_tensors_hooks as hooks

from graft.errors import UnsupportedModelError
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.heads.config import head_config
from graft.models.heads.files import HEADS
from graft.models.heads.row_masks import FAR, row_mask, shift_mask, window_mask
from graft.train.batches import anchor_offset, batch_of
from graft.train.examples import Example
from graft.train.kept import KeptOutputs
from graft.train.losses import CHUNK, OutputLayer, Supervision, cross_entropy
from graft.train.objectives import OBJECTIVES, Outcome, chains, counted_tokens
from graft.train.packing import pack
from graft.train.settings import KINDS
from graft.train.start import init_from_target, init_random, widen
from graft.train.target import Target

CHECKPOINT = Checkpoint("tiny", Path("nowhere"), "tiny")


LAYERS = {"eagle3": (0, 1, -1), "eagle2": (-1,), "longspec": ()}


def target(layers=1, kind="eagle2"):
    return Target(tiny_network(), tiny_tokenizer(), CHECKPOINT, layers, LAYERS[kind])


def rows_of(*lengths, length=32, seed=0):
    random = np.random.default_rng(seed)
    return pack(
        [
            Example(random.integers(3, 128, n).astype(np.int32), np.arange(n) >= n // 3)
            for n in lengths
        ],
        length,
    )


@pytest.mark.parametrize(
    ("labelled", "own", "renormalised"),
    [(False, False, False), (True, False, False), (False, True, False), (False, True, True)],
)
def test_the_loss_is_cross_entropy_over_the_drafted_ids(labelled, own, renormalised, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("graft.train.losses.CHUNK", 5)
    vocabulary, drafted, count, width = 30, 12, 17, 8
    whole, ids = torch.randn(vocabulary, width), torch.randperm(vocabulary)[:drafted]
    rows = torch.randn(drafted, width, requires_grad=True) if own else whole[ids]
    layer = OutputLayer(whole, rows, ids)
    outputs = torch.randn(2, count, width, requires_grad=True)
    supervision = Supervision(
        torch.randn(count, width),
        torch.randint(vocabulary, (count,)) if labelled else None,
        torch.rand(2, count) * (torch.rand(2, count) > 0.3),
        renormalised=renormalised,
    )
    loss, agreed = cross_entropy(outputs, supervision, layer)
    inputs = (outputs, rows) if own else (outputs,)
    gradients = torch.autograd.grad(2 * loss, inputs)

    target_logits = supervision.features @ layer.whole.T
    goal = F.softmax(target_logits, -1)[:, layer.ids]
    if renormalised:
        known = torch.isin(target_logits.argmax(-1), layer.ids)
        goal = goal / goal.sum(-1, keepdim=True) * known[:, None]
    if labelled:
        goal = F.one_hot(supervision.labels, vocabulary)[:, layer.ids].float()
    logits = outputs @ rows.T
    expected = -(supervision.weights[..., None] * goal * F.log_softmax(logits, -1)).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(2 * expected, inputs))
    same = layer.ids[logits.argmax(-1)] == target_logits.argmax(-1)
    asked = supervision.weights.any(0)
    assert torch.equal(agreed[:, asked], same[:, asked])


def test_no_tensor_of_all_logits_is_kept(monkeypatch):
    layer = OutputLayer(torch.randn(50, 4), torch.randn(50, 4), torch.arange(50))
    outputs = torch.randn(1, 3 * CHUNK, 4, requires_grad=True)
    supervision = Supervision(torch.randn(3 * CHUNK, 4), None, torch.ones(1, 3 * CHUNK))
    kept = []
    with hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        cross_entropy(outputs, supervision, layer)
    assert max(kept) <= outputs.numel()


def test_offsets_shift_all_but_the_sinks():
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 2, 3, 4, 0, 1, 2]])
    moved = anchor_offset(places, torch.tensor([100, 7]), 4)
    assert moved.tolist() == [[0, 1, 2, 3, 104, 105, 0, 1], [0, 1, 2, 3, 11, 0, 1, 2]]


def test_documents_of_a_row_do_not_attend_to_each_other():
    rows = rows_of(10, 12, 20)
    batch = batch_of(rows, np.arange(len(rows)), torch.device("cpu"))
    assert batch.packed
    visible = row_mask(batch.documents, (0, FAR))
    for row in range(len(rows)):
        for query in range(32):
            for key in range(32):
                same = rows.documents[row, query] == rows.documents[row, key]
                assert visible[row, query, key] == (same and key <= query)
        for number in range(rows.documents[row].max() + 1):
            mine = batch.places[row][batch.documents[row] == number]
            assert mine.tolist() == list(range(len(mine)))


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_packed_documents_give_the_same_features_as_single_ones(layers):
    model, rows = target(layers), rows_of(10, 20, length=32)
    assert len(rows) == 1
    batch = batch_of(rows, np.array([0]), torch.device("cpu"))
    offsets = torch.tensor([50])
    outputs = model.forward(batch, anchor_offset(batch.places, offsets, 4))
    for number in range(2):
        mine = batch.documents[0] == number
        positions = anchor_offset(torch.arange(int(mine.sum()))[None], offsets, 4)
        alone = model.network.base_model(
            batch.tokens[:, mine], position_ids=positions, use_cache=True
        )
        torch.testing.assert_close(
            outputs.features[:, mine], alone.last_hidden_state, rtol=1e-4, atol=1e-5
        )
        last = alone.past_key_values.layers[::-1][:layers]
        both = zip(*((each.keys, each.values) for each in last), strict=True)
        for ours, theirs in zip(outputs.kv, both, strict=True):
            expected = torch.cat(theirs, 1)
            torch.testing.assert_close(ours[:, :, mine], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_target_is_computed_as_transformers_does():
    model, rows = target(kind="eagle3"), rows_of(32)
    batch = batch_of(rows, np.array([0]), torch.device("cpu"))
    outputs = model.forward(batch, batch.places)
    expected = tiny_network().model(batch.tokens, output_hidden_states=True).hidden_states
    torch.testing.assert_close(outputs.last, expected[-1], rtol=1e-4, atol=1e-5)
    wanted = torch.cat([expected[layer] for layer in LAYERS["eagle3"]], -1)
    torch.testing.assert_close(outputs.features, wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_one_document_to_a_row_needs_no_mask_and_positions_may_jump():
    model = target()
    both = [
        batch_of(rows, np.array([0]), torch.device("cpu")) for rows in (rows_of(32), rows_of(32))
    ]
    assert not both[0].packed
    masked = replace(both[1], packed=True)
    positions = anchor_offset(both[0].places, torch.tensor([99]), 4)
    torch.testing.assert_close(
        model.forward(both[0], positions).features, model.forward(masked, positions).features
    )


def made(kind, model, settings, **more):
    more = {"feature_layers": LAYERS[kind]} | more
    head = HEADS[kind](head_config(kind, CHECKPOINT, model.config, **more))
    init_random(head, 1)
    init_from_target(head, model.network)
    return head, OBJECTIVES[kind](model, head, replace(settings, kind=kind))


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_packing_does_not_change_the_loss(settings, kind):
    """Two documents in a row teach what they teach in a row each."""
    model = target(kind=kind)
    head, objective = made(kind, model, settings)
    packed = rows_of(14, 17)
    tokens, documents, loss_mask = packed.tokens[0], packed.documents[0], packed.loss_mask[0]
    apart = pack(
        [Example(tokens[documents == n], loss_mask[documents == n]) for n in range(2)], length=17
    )
    losses = []
    for rows in (packed, apart):
        batch = batch_of(rows, np.arange(len(rows)), torch.device("cpu"))
        losses.append(objective.measure(head, batch).loss.item())
    assert len(packed) == 1
    assert len(apart) == 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@every_kind
@pytest.mark.parametrize("loss", ["soft", "token", "paper"])
def test_every_loss_decreases(settings, kind, loss):
    model = target(kind=kind)
    head, objective = made(kind, model, replace(settings, loss=loss), draft_vocabulary=100)
    rows = rows_of(20, 30, 9)
    batch = batch_of(rows, np.arange(len(rows)), torch.device("cpu"))
    outcome = objective.learn(head, batch, np.random.default_rng(0))
    outcome.loss.backward()
    assert outcome.loss.item() > 0
    assert all(p.grad.isfinite().all() and p.grad.any() for p in head.parameters())
    counted = counted_tokens(rows, np.arange(len(rows)), objective.ahead)
    assert counted == int(outcome.counted[0].sum())


def test_every_cross_layer_gets_gradients(settings):
    model = target(layers=2)
    head, objective = made("longspec", model, settings, cross_layers=2)
    rows = rows_of(20, 30, 9)
    batch = batch_of(rows, np.arange(len(rows)), torch.device("cpu"))
    objective.learn(head, batch, np.random.default_rng(0)).loss.backward()
    cross = head.cross_attn
    for part in (*cross.q_proj.weight.grad.chunk(2, 0), *cross.o_proj.weight.grad.chunk(2, 1)):
        assert part.isfinite().all()
        assert part.any()


def test_a_new_head_copies_the_attention_of_each_layer(settings):
    model = target(layers=2)
    head, _ = made("longspec", model, settings, cross_layers=2)
    layers = model.network.base_model.layers
    for number, place in ((0, -1), (1, -2)):
        theirs, ours = layers[place].self_attn, head.cross_attn
        assert torch.equal(ours.q_proj.weight.chunk(2, 0)[number], theirs.q_proj.weight)
        assert torch.equal(ours.o_proj.weight.chunk(2, 1)[number], theirs.o_proj.weight)


@torch.no_grad()
def test_a_widened_head_drafts_the_same(settings):
    model, ids = target(layers=2), torch.randperm(128)[:60]
    before, _ = made("longspec", target(), settings, draft_vocabulary=60)
    before.d2t.copy_(ids)
    init_random(before, 7)
    head, objective = made("longspec", model, settings, draft_vocabulary=60, cross_layers=2)
    widen(head, before)
    assert torch.equal(head.d2t, ids)
    batch = batch_of(rows_of(20, 30, 9), np.arange(2), torch.device("cpu"))
    keys, values = model.forward(batch, batch.places).kv
    known = keys.shape[1] // 2
    embeddings = F.embedding(batch.tokens, model.embedding)
    masks = window_mask(batch.documents, 512), [shift_mask(batch.documents, n) for n in (1, 3)]
    both = [
        each(embeddings, memory, batch.places, *masks)
        for each, memory in ((head, (keys, values)), (before, (keys[:, :known], values[:, :known])))
    ]
    torch.testing.assert_close(*both, rtol=0, atol=1e-5)
    new = head.cross_attn.o_proj.weight[:, before.cross_attn.o_proj.in_features :]
    assert not new.any()
    assert head.cross_attn.q_proj.weight[before.cross_attn.q_proj.out_features :].any()
    with torch.enable_grad():  # and goes on to learn: the others' output first
        objective.learn(head, batch, np.random.default_rng(0)).loss.backward()
    assert head.cross_attn.o_proj.weight.grad.chunk(2, 1)[1].any()


def test_noise_offsets_and_shifts_depend_on_the_generator_only(settings):
    model = target()
    rows = rows_of(32)
    batch = batch_of(rows, np.array([0]), torch.device("cpu"))
    for kind in ("eagle2", "longspec"):
        head, objective = made(kind, model, settings)
        losses = [
            objective.learn(head, batch, np.random.default_rng(seed)).loss.item()
            for seed in (1, 1, 2)
        ]
        assert losses[0] == losses[1] != losses[2]


def test_eagle_positions_are_shifted_if_requested(settings, monkeypatch):
    """The target and the head read the same positions, and a seed moves them."""
    model, batch = target(), batch_of(rows_of(32), np.array([0]), torch.device("cpu"))
    seen, forward = [], Target.forward
    monkeypatch.setattr(Target, "forward", lambda *given: seen.append(given[2]) or forward(*given))
    for moved in (False, True):
        head, objective = made("eagle2", model, replace(settings, offset_positions=moved))
        given = []
        head.register_forward_pre_hook(lambda _, inputs, given=given: given.append(inputs[2]))
        objective.learn(head, batch, np.random.default_rng(3))
        assert torch.equal(seen[-1], given[0])
        assert torch.equal(given[0], batch.places) != moved
        assert torch.equal(given[0][:, :4], batch.places[:, :4])


@pytest.mark.parametrize("kind", KINDS)
def test_kept_outputs_are_those_of_the_target(settings, kind, monkeypatch):
    """Epochs in other orders; the last store has space for three of four rows."""
    rows, passes, run = rows_of(32, 32, 32, 20, 12), [], Target._run
    monkeypatch.setattr(Target, "_run", lambda *given: passes.append(given[1].rows) or run(*given))
    settings = replace(settings, keep_outputs=1.0, offset_positions=True)
    losses, ran, used = [], [], 0
    for limit in (0, 1 << 30, None):
        space = used - 1 if limit is None else limit
        model = target(1 if kind == "longspec" else 0, kind)
        model.kept = KeptOutputs(space) if space else None
        head, objective = made(kind, model, settings)
        passes.clear()
        losses.append([])
        for order in ([0, 1], [2, 3], [3, 0], [1, 2], [0, 2]):
            batch = batch_of(rows, np.array(order), torch.device("cpu"))
            batch = replace(batch, rows=tuple(order))
            losses[-1].append(objective.learn(head, batch, np.random.default_rng(5)).loss)
        objective.measure(head, batch_of(rows, np.array([0]), torch.device("cpu")))
        ran.append(list(passes))
        used = used or (1 << 30) - model.kept._left if model.kept else 0
    every = [(0, 1), (2, 3), (3, 0), (1, 2), (0, 2), ()]
    assert ran == [every, [*every[:2], ()], [*every[:3], ()]]
    for each in losses[1:]:
        torch.testing.assert_close(each, losses[0])


def test_a_longspec_head_does_not_use_masked_keys(settings):
    """What the target remembers of the last tokens is changed; a shift of 4 does not notice."""
    model = target()
    head, _ = made("longspec", model, settings)
    batch = batch_of(rows_of(32), np.array([0]), torch.device("cpu"))
    keys, values = model.forward(batch, batch.places).kv
    embeddings = F.embedding(batch.tokens, model.embedding)
    changed = keys.clone(), values.clone()
    for each in changed:
        each[:, :, 29:] += 1
    for shift, differs in ((1, True), (2, True), (3, False), (4, False)):
        masks = window_mask(batch.documents, 512), [shift_mask(batch.documents, shift)]
        both = [
            head(embeddings, memory, batch.places, *masks)[0, 0, 31]
            for memory in ((keys, values), changed)
        ]
        assert torch.equal(*both) != differs


def test_chains_end_at_the_first_rejected_token():
    agreed = torch.tensor([[[1, 1, 0, 1, 1]], [[0, 1, 1, 0, 1]], [[0, 0, 1, 1, 1]]]).bool()
    counted = torch.ones_like(agreed)
    went, begun = chains(Outcome(torch.zeros(()), agreed, counted))
    # begun at columns 0, 1, 2: guesses (1, 1, 1), (1, 1, 1), (0, ...)
    assert begun == 3
    assert went.tolist() == [2, 2, 2]
    counted[0, 0, 1] = False
    went, begun = chains(Outcome(torch.zeros(()), agreed, counted))
    assert begun == 2
    assert went.tolist() == [1, 1, 1]


@torch.no_grad()
def test_a_perfect_head_is_measured_as_perfect(settings):
    """One that writes the target's own features is accepted to the end."""
    model = target()
    _, objective = made("eagle2", model, settings)
    batch = batch_of(rows_of(32), np.array([0]), torch.device("cpu"))

    def perfect(embeddings, features, positions, masks):
        return features.roll(-1, 1).expand(len(masks), *features.shape)

    went, begun = chains(objective.measure(perfect, batch))
    assert begun > 0
    assert went.tolist() == [begun] * 5


def test_a_target_that_caps_its_logits_is_an_error():
    network = tiny_network()
    plain = network.forward

    def capped(*args, **options):
        read = plain(*args, **options)
        read.logits = 5 * torch.tanh(read.logits / 5)
        return read

    network.forward = capped
    with pytest.raises(UnsupportedModelError, match="scales or caps"):
        Target(network, tiny_tokenizer(), CHECKPOINT)
