import numpy as np
import pytest
from made_up_rows import Recorder

from benchmarks.index import measure as measured
from benchmarks.index.run import IndexSettings, run
from benchmarks.report import report
from graft.bench.result_file import open_results, read_results
from graft.errors import InputError


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(measured, "STEPS", 3)


@pytest.mark.parametrize("name", measured.INDEXES)
def test_every_index_is_built_and_queried(name):
    text = measured.made_up_text(4000)
    found = measured.measure(name, text, 512, 1)
    assert all(found[field] > 0 for field in ("build_ms", "extend_us", "lookup_us"))
    assert ("open_ms" in found) == (name in ("store", "pool"))


def test_steps_append_the_text_that_follows(monkeypatch):
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


def measure(path, settings, progress):
    with open_results(path) as file:
        run(settings, file, progress)


def test_an_interrupted_run_resumes(tmp_path):
    path, settings = tmp_path / "index.jsonl", IndexSettings(sizes=(64, 128), indexes=("ngram",))
    with pytest.raises(KeyboardInterrupt):
        measure(path, settings, Recorder(interrupt_after=1))
    measure(path, settings, progress := Recorder())
    assert (progress.total, progress.done, progress.finished) == (2, 1, 1)
    assert [row["tokens"] for row in read_results(path).rows] == [64, 128]
    found = report(path)
    assert "| ngram | 64 |" in found.as_markdown()
    assert [figure.title for figure in found.figures] == ["build", "lookup"]
    other = IndexSettings(sizes=(256,), indexes=("ngram",), text=tmp_path / "index.jsonl")
    with pytest.raises(InputError, match="words, but --sizes needs"):
        measure(path, other, Recorder())


def test_words_of_a_text_are_its_tokens(tmp_path):
    (tmp_path / "text").write_text("the end of the end")
    words = measured.words_of(tmp_path / "text")
    assert words[0] == words[3]
    assert len(set(words.tolist())) == 3


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sizes": (0,)}, "--sizes takes whole numbers from 1 on"),
        ({"indexes": ("trie",)}, "unknown index 'trie'; choose from automaton, ngram"),
        ({"repeats": 0}, "--repeats must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(given, line):
    with pytest.raises(InputError, match=line):
        IndexSettings(**given)
