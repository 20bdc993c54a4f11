"""Drafts from a datastore: lossless, and with their source."""

import numpy as np
import pytest
from tiny import VOCABULARY, tiny_draft_model, tiny_engine

from graft import SamplingParams
from graft.assemble.drafters import make_drafter
from graft.assemble.resources import DraftResources
from graft.draft.combined import Combined, Concurrently, GuidedByModel
from graft.draft.copies.lookup import LookupDrafter
from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.draft.options import Rasd
from graft.draft.pacing.budget import best_by_cost, up_to_limit
from graft.match.rest import RestIndex
from graft.match.store_build import StoreWriter, begin_store
from graft.match.store_files import Manifest, writing
from graft.match.suffix_array import StoreIndex, open_store
from graft.tree.draft_tree import from_paths


def store_of(folder, tokens):
    with writing(folder):
        writer = StoreWriter(folder, begin_store(folder, Manifest("tok", "tiny", VOCABULARY)))
        writer.add(["answer"], lambda _: [np.array(tokens, np.uint32)], lambda _: None)
        writer.finish()
    return open_store(folder, "tok")


class Guide(NoDraft):
    """A model that drafts two next tokens."""

    def propose(self, contexts, budget):
        return [from_paths(context.root, [[2], [3]], "model") for context in contexts]

    def first_tokens(self, sequence):
        return [2, 3]


@pytest.mark.parametrize("kind", [StoreIndex, RestIndex])
def test_store_without_matches_continues_the_models_nodes(kind, tmp_path):
    """61 alone is no match of two tokens; 61 and a draft token are."""
    store, guide = store_of(tmp_path / "store", [61, 3, 4, 5]), Guide()
    retrieval = LookupDrafter(lambda _: kind(store), up_to_limit, nodes=64, calibrated=False)
    prune = GuidedByModel(retrieval, guide)
    combined = Combined([retrieval, guide], prune=prune, schedule=Concurrently())
    context = DraftContext(0, [], [], tokens=[99, 61])
    combined.start(context)
    (tree,) = combined.propose([context], Budget(63, np.linspace(1, 1.1, 64)))
    assert {tuple(path): tree.source(i) for i, path in enumerate(tree.paths()) if path} == {
        **{(2,): "model", (3,): "model"},
        **{(3, 4): "store", (3, 4, 5): "store"},
    }


@pytest.mark.parametrize(("requery", "searches"), [(None, 1), (False, 1), (True, 7)])
def test_rasd_searches_a_datastore_once_per_step_unless_it_may_repeat(
    requery, searches, tmp_path, monkeypatch
):
    store, calls, find = store_of(tmp_path / "store", [61, 3, 4, 5]), [], RestIndex._find
    monkeypatch.setattr(RestIndex, "_find", lambda *given: calls.append(1) or find(*given))
    resources = DraftResources(tiny_draft_model(), rasd=Rasd(requery=requery))
    drafter = make_drafter("rasd-rest:x", resources, lambda _: store)
    context = DraftContext(0, [], [], tokens=[99, 98])
    drafter.start(context)
    drafter.propose([context], Budget(63, np.linspace(1, 1.1, 64)))
    assert len(calls) == searches
    drafter.finish(0)


def test_store_match_scores_less_than_a_copy(tmp_path):
    """For matches of the same length in a new request."""
    store = store_of(tmp_path / "store", [40, 41, 42, 43, 44, 45])
    costs = Budget(63, np.linspace(1, 1.1, 64))
    context = DraftContext(0, [40, 41, 42, 43, 44, 45], [(0, 6)], tokens=[1, 40, 41, 42])
    scores = []
    for name in ("auto", "store:x"):
        drafter = make_drafter(name, find_store=lambda _: store)
        drafter.start(context)
        (tree,) = drafter.propose([context], costs)
        assert tree.tokens[1] == 43
        scores.append(tree.scores[1])
    assert scores[0] > scores[1] > 0


def test_answer_in_the_store_takes_fewer_steps_and_is_the_same(tmp_path):
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
    plain = tiny_engine().generate("the rain in the plain", params, draft="plain")
    store = store_of(tmp_path / "store", plain.token_ids)
    drafters = {
        "store": LookupDrafter(lambda _: store.index(), best_by_cost, nodes=48, calibrated=True),
        "rest": LookupDrafter(lambda _: RestIndex(store), up_to_limit, nodes=64, calibrated=False),
    }
    engine = tiny_engine(drafters=drafters)
    for name in drafters:
        drafted = engine.generate("the rain in the plain", params, draft=name)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.steps < plain.stats.steps / 2
        assert set(drafted.stats.accepted_by_source) == {"store"}
