import numpy as np
import pytest
from made_up_answers import Recorder

from benchmarks.index import measure as measured
from benchmarks.index.run import INDEX, KEY, IndexSettings, index_settings, run
from graft.bench.journal import open_journal, read_journal
from graft.errors import InputError


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(measured, "STEPS", 3)


@pytest.mark.parametrize("name", measured.INDEXES)
def test_every_index_is_built_and_asked(name):
    text = measured.made_up_text(4000)
    found = measured.measure(name, text, 512, 1)
    assert all(found[field] > 0 for field in ("build_ms", "extend_us", "lookup_us"))
    assert ("open_ms" in found) == (name == "store")


def test_an_index_is_asked_about_what_it_does_not_hold_yet(monkeypatch):
    """Steps append what follows the text it was built of."""
    seen = []

    class Index:
        @classmethod
        def warm_up(cls):
            pass

        def extend(self, tokens):
            seen.extend(tokens.tolist())

        def lookup(self, limit, confidence):
            return ()

    monkeypatch.setitem(measured.LIVE, "ngram", Index)
    measured.measure("ngram", np.arange(100), 10, 1)
    assert seen[10:] == list(range(10 + 3 * measured.ACCEPTED))


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    path, settings = tmp_path / "index.jsonl", IndexSettings(sizes=(64, 128), indexes=("ngram",))
    with pytest.raises(KeyboardInterrupt), open_journal(path, INDEX, KEY) as journal:
        run(settings, journal, Recorder(interrupt_after=1))
    with open_journal(path, INDEX, KEY) as journal:
        run(settings, journal, watch := Recorder())
    assert (watch.total, watch.done, watch.finished) == (2, 1, 1)
    assert [row["tokens"] for row in read_journal(path, INDEX, KEY).rows] == [64, 128]
    other = IndexSettings(sizes=(256,), indexes=("ngram",), repeats=2)
    with pytest.raises(InputError, match="was measured with repeats 5, not 2"):
        with open_journal(path, INDEX, KEY) as journal:
            run(other, journal, Recorder())


def test_words_of_a_text_are_its_tokens(tmp_path):
    (tmp_path / "text").write_text("the end of the end")
    words = measured.words_of(tmp_path / "text")
    assert words[0] == words[3]
    assert len(set(words.tolist())) == 3
    settings = IndexSettings(sizes=(64,), text=tmp_path / "text")
    with pytest.raises(InputError, match="text has 5 words, but the largest of --sizes needs"):
        with open_journal(None, INDEX, KEY) as journal:
            run(settings, journal, Recorder())


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("8q", None, None, None), "--sizes takes numbers of tokens such as 8k, not '8q'"),
        (("0", None, None, None), "take whole numbers from 1 on"),
        ((None, "trie", None, None), "unknown index 'trie'; choose from automaton, ngram"),
    ],
)
def test_what_cannot_be_measured_is_one_line(given, line):
    with pytest.raises(InputError, match=line):
        index_settings(*given)
