"""Sentences and content words, by the bundled rules and by spaCy."""

import sys
from types import SimpleNamespace

import pytest

from graft.rag import sentences
from graft.rag.sentences import BundledLanguage, SpacyLanguage, find_language, may_end_sentence

LANGUAGE = BundledLanguage()


@pytest.fixture
def anew():
    find_language.cache_clear()
    yield
    find_language.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He came. She left! Why?", ["He came.", "She left!", "Why?"]),
        ("Dr. Smith met J. R. R. Tolkien.", ["Dr. Smith met J. R. R. Tolkien."]),
        ("It is 3.5 km long. It ends.", ["It is 3.5 km long.", "It ends."]),
        ("one line\nanother", ["one line", "another"]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("approx. ten went. on", ["approx. ten went. on"]),
        ("So do I. They agree.", ["So do I.", "They agree."]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert [text[a:b] for a, b in LANGUAGE.sentences(text)] == expected


def test_content_words_are_neither_function_words_nor_adverbs():
    text = "The family quickly moved to Italy in 1954, and they didn't regret it."
    found = [text[a:b] for a, b in LANGUAGE.content_words(text)]
    assert found == ["family", "moved", "Italy", "1954", "regret"]


@pytest.mark.parametrize(
    ("text", "ends"), [("Done.", True), ("Done. ", True), ("So", False), ("a\n", True), ("", False)]
)
def test_only_punctuation_and_line_ends_may_end_a_sentence(text, ends):
    assert may_end_sentence(text) is ends


def test_without_spacy_the_bundled_rules_are_used_and_named(anew, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert find_language().name == "bundled"


def test_spacy_without_its_model_is_not_used(anew, monkeypatch):
    def load(name):
        raise OSError(f"can't find {name}")

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    assert find_language().name == "bundled"


class FakePipeline:
    """Two words are a sentence, words with capitals are names."""

    meta = {"name": "core_web_sm", "version": "3.8.0"}

    def __call__(self, text):
        words, place = [], 0
        for word in text.split():
            place = text.index(word, place)
            kind = "PROPN" if word[0].isupper() else "DET"
            words.append(SimpleNamespace(text=word, idx=place, pos_=kind))
            place += len(word)
        pairs = [words[i : i + 2] for i in range(0, len(words), 2)]
        spans = [
            SimpleNamespace(start_char=p[0].idx, end_char=p[-1].idx + len(p[-1].text) + 1)
            for p in pairs
        ]
        return type("Doc", (list,), {"sents": spans})(words)


def test_spacy_is_used_if_installed(anew, monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda name: FakePipeline()))
    language = find_language()
    assert isinstance(language, SpacyLanguage)
    assert language.name == "spacy core_web_sm 3.8.0"
    assert sentences.SPACY_MODEL == "en_core_web_sm"
    assert language.sentences("the Cat sat Down") == [(0, 7), (8, 16)]
    assert language.content_words("the Cat sat Down") == [(4, 7), (12, 16)]


def test_spacys_own_model_finds_sentences_and_parts_of_speech(anew):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed")
    if not spacy.util.is_package(sentences.SPACY_MODEL):
        pytest.skip(f"spaCy has no {sentences.SPACY_MODEL}: python -m spacy download it")
    language = find_language()
    assert language.name.startswith("spacy core_web_sm ")
    text = "Dr. Smith quickly moved to Italy in 1954. They agreed."
    assert [text[a:b] for a, b in language.sentences(text)] == [text[:41], "They agreed."]
    found = [text[a:b] for a, b in language.content_words(text)]
    assert {"Smith", "moved", "Italy", "1954", "agreed"} <= set(found)
    assert not {"quickly", "to", "in", "They"} & set(found)


def test_a_real_spacy_pipeline_is_understood():
    """Without its trained model, which no package index has: sentences and words by rules."""
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    rules = pipeline.add_pipe("attribute_ruler")
    rules.add([[{"LOWER": {"IN": ["cat", "river", "bank"]}}]], {"POS": "NOUN"})
    rules.add([[{"LOWER": "ran"}]], {"POS": "VERB"})
    rules.add([[{"LOWER": "the"}]], {"POS": "DET"})
    language, text = SpacyLanguage(pipeline), "The cat ran to the river bank. It sat\n\n there"
    assert [text[a:b] for a, b in language.content_words(text)] == ["cat", "ran", "river", "bank"]
    first, second = language.sentences(text)
    assert text[slice(*first)] == "The cat ran to the river bank."
    assert text[slice(*second)] == "It sat\n\n there"
