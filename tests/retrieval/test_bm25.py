import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.retrieval.bm25 import question_words, scores, words

VOCABULARY = ["rent", "lift", "door", "pay", "key", "roof", "week"]
TEXTS = st.lists(
    st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join), min_size=1, max_size=8
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The LIFT's 2nd door", ["the", "lift", "s", "2nd", "door"]),
        ("Straße, naïve", ["straße", "naïve"]),
        ("cafe\u0301", ["café"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("日本語", ["日本", "本語"]),
        ("Debian 新規 a 本", ["debian", "a", "新規", "本"]),
        ("สวัสดี", ["สว", "วั", "ัส", "สด", "ดี"]),
        ("", []),
        ("!?", []),
    ],
)
def test_words_of_many_scripts(text, found):
    assert words(text) == found


def test_question_words_are_content_words():
    assert question_words("What is the rent, and when is the rent due?") == ["rent", "due"]
    assert question_words("What is it?") == ["what", "is", "it"]


@given(TEXTS, st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4, unique=True))
def test_scores_are_those_of_an_index_of_all_words(texts, asked):
    split = [text.split() for text in texts]
    ours = scores(" ".join(asked), texts)
    assert ours.shape == (len(texts),)
    for text, score in zip(split, ours, strict=True):
        assert (score > 0) == bool(set(text) & set(asked))
    if any(split):
        index = bm25s.BM25()
        index.index(split, show_progress=False)
        known = [word for word in asked if any(word in text for text in split)]
        expected = index.get_scores(known) if known else np.zeros(len(texts))
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.parametrize("question", ["", "???", "elephants"])
def test_question_without_a_match_scores_zero(question):
    assert scores(question, ["rent and lift", "", "door"]).tolist() == [0, 0, 0]
    assert scores(question, []).tolist() == []


def test_relevant_passage_is_first():
    texts = ["The roof leaks.", "The lift was built in 2011 by Otis.", "Rent is due weekly."]
    assert scores("Who built the lift?", texts).argmax() == 1
    japanese = ["屋根が漏れる。", "リフトは二〇一一年に建設された。"]
    assert scores("リフトはいつ建設されましたか", japanese).argmax() == 1
