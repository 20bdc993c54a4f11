"""Policies by name: the published thresholds of every model and family of questions."""

import pytest
from rag_tiny import CORPUS
from scripted_engine import ScriptedEngine

from graft.errors import InputError
from graft.rag import policies
from graft.rag.dragin import PUBLISHED, Thresholds
from graft.rag.families import FAMILIES
from graft.rag.flare import THRESHOLDS, Flare
from graft.rag.policies import make_policy
from graft.rag.policy import TUNED_FOR
from graft.rag.session import Session

ENGINE = ScriptedEngine()
# FLARE's threshold, DRAGIN's, words of DRAGIN's query; of DRAGIN's authors
MODELS = {
    "7b": {"2wiki": (0.10, 1.0, 25), "hotpotqa": (0.08, 0.8, 35),
           "iirc": (0.08, 0.6, 35), "strategyqa": (0.10, 0.75, 35)},
    "13b": {"2wiki": (0.08, 0.8, 25), "hotpotqa": (0.10, 1.2, 35),
            "iirc": (0.10, 1.0, 25), "strategyqa": (0.06, 1.3, 25)},
    "vicuna-13b": {"2wiki": (0.10, 1.2, 25), "hotpotqa": (0.10, 1.2, 35),
                   "iirc": (0.40, 1.3, 35), "strategyqa": (0.10, 1.5, 25)},
}  # fmt: skip
CELLS = [(model, family, *cell) for model, row in MODELS.items() for family, cell in row.items()]


@pytest.fixture(autouse=True)
def no_attention(monkeypatch):
    """DRAGIN without a model."""
    monkeypatch.setattr(policies, "ModelAttention", lambda engine: None)


@pytest.mark.parametrize(("model", "family", "doubt", "rind", "top"), CELLS)
def test_thresholds_are_the_published_ones(model, family, doubt, rind, top):
    chosen = {"family": family, "thresholds": model}
    assert make_policy("flare", ENGINE, **chosen).threshold == doubt
    assert make_policy("dragin", ENGINE, **chosen).thresholds == Thresholds(rind, top)


def test_no_other_thresholds_are_there():
    for table in (THRESHOLDS, PUBLISHED):
        assert {model: {*row} for model, row in table.items()} == {
            model: {*row} for model, row in MODELS.items()
        }
    assert tuple(MODELS) == TUNED_FOR


@pytest.mark.parametrize("model", TUNED_FOR)
def test_families_without_thresholds_have_those_of_hotpotqa(model):
    doubt, rind, top = MODELS[model]["hotpotqa"]
    for family in ("general", "musique", "unheard-of"):
        chosen = {"family": family, "thresholds": model}
        assert make_policy("fl", ENGINE, **chosen).length == 32
        assert make_policy("flare", ENGINE, **chosen).threshold == doubt
        assert make_policy("dragin", ENGINE, **chosen).thresholds == Thresholds(rind, top)


def test_every_family_of_the_paper_that_has_demonstrations_is_named_alike():
    assert {*FAMILIES} - {*MODELS["7b"]} == {"general", "musique"}


def test_a_number_overrides_the_published_threshold_and_keeps_the_words():
    chosen = make_policy("dragin", ENGINE, family="2wiki", threshold=0.5, thresholds="13b")
    assert chosen.thresholds == Thresholds(0.5, 25)


def test_file_of_a_family_has_the_thresholds_of_its_name(tmp_path):
    path = tmp_path / "iirc.toml"
    path.write_text('instruction = "Answer."\n')
    chosen = {"policy": "flare", "family": str(path), "thresholds": "vicuna-13b"}
    session = Session(ENGINE, CORPUS, reuse="off", **chosen)
    assert session.policy.threshold == 0.40


def test_unknown_thresholds_are_refused():
    with pytest.raises(InputError, match="choose those for one of 7b, 13b, vicuna-13b"):
        make_policy("flare", ENGINE, thresholds="70b")
    with pytest.raises(InputError, match="has its own threshold"):
        Session(ENGINE, CORPUS, policy=Flare(0.5), thresholds="13b")
