"""`graft index passages`: corpora built, added to, searched and described."""

import json

import pytest

TEXTS = {
    "lift.md": "# The lifts\n\nThe lift at the main entrance was installed in 2011.",
    "pay.txt": "Payment is due within thirty days of the invoice.",
}


@pytest.fixture
def run(cli):
    """Runs `graft index passages ... --json` and returns what it printed."""

    def run(*arguments):
        done = cli("index", "passages", *arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return run


def refused(cli, *arguments):
    done = cli("index", "passages", *arguments)
    assert done.exit_code != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_corpus_is_built_extended_described_and_searched(run, tmp_path, files):
    corpus = tmp_path / "corpus"
    made = run(corpus, files)
    assert (made["passages"], made["added"], made["engines"]) == (2, 2, ["bm25"])
    (files / "water.txt").write_text("The city supplies water.")
    assert run(corpus, files, "--add")["added"] == 1
    described = run(corpus, "--info")
    assert (described["passages"], described["words"]) == (3, 100)
    [hit] = run(corpus, "--query", "when was the lift installed", "--limit", 1)["hits"]
    assert (hit["title"], hit["score"] > 0) == ("The lifts", True)
    assert run(tmp_path, "--list") == {"corpora": [str(corpus)]}


def test_output_without_json(cli, tmp_path, files):
    done = cli("index", "passages", tmp_path / "corpus", files, "--words", "5")
    assert "added 5 passages" in done.stdout
    assert "5 passages of at most 5 words" in done.stdout
    assert "search engine bm25" in done.stdout
    found = cli("index", "passages", tmp_path / "corpus", "--query", "lift").stdout
    assert "] The lifts" in found


def test_a_corpus_in_milvus(run, tmp_path, files):
    """pymilvus sets up logging when it is imported, and so closes all handlers there are: absl's
    closes the stream it began with, unless that is standard error, as it is here and not below."""
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    corpus = f"milvus:{tmp_path}/corpus.db#texts"
    assert run(corpus, files, "--engine", "bm25s")["passages"] == 2
    assert run(corpus, "--info")["corpus"] == corpus
    assert run(f"milvus:{tmp_path}/corpus.db", "--list") == {"corpora": [corpus]}
    assert run(corpus, "--query", "invoice")["hits"][0]["title"] == "pay"
    assert run(corpus, files, "--add")["added"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name FILES to build the corpus from"),
        (["FILES", "--info"], "name FILES to build the corpus from"),
        (["--info", "--add"], "are for building"),
        (["FILES", "--engine", "faiss"], "unknown engine 'faiss'"),
        (["FILES", "--add"], "is not a corpus; make one with"),
        (["FILES", "--add", "--words", "5"], "leave these out"),
        (["--info"], "is not a corpus; make one with"),
        (["nowhere.txt"], "does not exist"),
        (["--query", "x"], "is not a corpus; make one with"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(cli, tmp_path, files, arguments, message):
    given = [files if each == "FILES" else each for each in arguments]
    assert message in refused(cli, tmp_path / "corpus", *given)
    assert not (tmp_path / "corpus").exists()
