"""`graft ask` with a tiny model."""

import json

import pytest
from tiny import tiny_engine, tiny_network

import graft
from graft.cli.ask import AskOptions
from graft.models.checkpoints import pretrained

ROWS = [
    {"id": "p1", "title": "apple", "text": "the apple and the pear in the water"},
    {"id": "p2", "title": "river", "text": "a river and a boat on the water"},
]


@pytest.fixture(scope="module")
def tiny():
    return tiny_engine(tiny_network(max_position_embeddings=16384))


@pytest.fixture
def loading(monkeypatch, tiny):
    loaded = []

    def load(name, **options):
        loaded.append((name, options))
        return tiny

    monkeypatch.setattr(graft, "load", load, raising=False)
    monkeypatch.setattr(pretrained, "locate", lambda name: None)
    return loaded


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def ask(cli, corpus, *more):
    words = "--policy fs --temperature 0.8 --seed 3 --max-tokens 24".split()
    return cli("ask", "Where is the apple?", "--corpus", corpus, *words, *more)


def test_answer_goes_to_stdout_and_statistics_to_stderr(cli, loading, corpus):
    done = ask(cli, corpus)
    assert done.exit_code == 0, done.output
    assert "the answer is" in done.stdout
    assert "searches" in done.stderr
    assert "prompt tokens cached" in done.stderr


def test_rounds_are_listed(cli, loading, corpus):
    done = ask(cli, corpus, "--show-rounds")
    assert "query: Where is the apple?" in done.stderr
    assert "[p1] apple" in done.stderr
    assert "forced" in done.stderr


def test_json_is_one_object_with_its_rounds(cli, loading, corpus):
    done = ask(cli, corpus, "--json", "--reuse", "off", "--draft", "pld")
    printed = json.loads(done.stdout)
    assert (printed["policy"], printed["reuse"], printed["draft"], printed["seed"]) == (
        "fs",
        "off",
        "pld",
        3,
    )
    first = printed["rounds"][0]
    assert first["query"] == "Where is the apple?"
    assert [each["id"] for each in first["passages"]] == ["p1", "p2"][: len(first["passages"])]
    assert printed["stats"]["reused_tokens"] == 0
    assert printed["model"] == "tiny"
    assert printed["load_seconds"] == 0.0


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--reuse", "cics"], "cics"),
        (["--reuse", "keep", "--scope", "all"], "keep+all"),
        (["--reuse", "blend", "--share", "0.4", "--reorder"], "blend+0.4+reorder"),
    ],
)
def test_approximate_reuse_is_reported(cli, loading, corpus, words, name):
    printed = json.loads(ask(cli, corpus, "--json", *words).stdout)
    assert (printed["reuse"], printed["approximate"], printed["lossless"]) == (name, True, True)
    assert printed["guided"]
    assert {"approximate", "approximate_tokens", "reordered"} <= set(printed["rounds"][0])
    assert "· approximate" in ask(cli, corpus, *words).stderr


def test_the_same_seed_gives_the_same_text_with_every_draft(cli, loading, corpus):
    drafts = [("--draft", "plain"), ("--draft", "auto"), ("--reuse", "demos")]
    texts = {json.loads(ask(cli, corpus, "--json", *each).stdout)["text"] for each in drafts}
    assert len(texts) == 1


def test_published_thresholds_of_another_model_are_used(loading, corpus):
    options = {"policy": "flare", "family": "strategyqa", "corpus": [str(corpus)]}
    chosen = [AskOptions(**options, **more)
              for more in ({}, {"thresholds": "13b"}, {"threshold": 0.3})]  # fmt: skip
    thresholds = [each.session(each.read_corpus()).policy.threshold for each in chosen]
    assert thresholds == [0.10, 0.06, 0.3]


def test_html_page_is_written(cli, loading, corpus, tmp_path):
    page = tmp_path / "new" / "page.html"
    done = ask(cli, corpus, "--html", page)
    assert done.exit_code == 0, done.output
    assert "Where is the apple?" in page.read_text()


def test_documents_are_a_corpus_too(cli, loading, document):
    done = ask(cli, document, "--json")
    printed = json.loads(done.stdout)
    assert done.exit_code == 0
    passages = printed["rounds"][0]["passages"]
    assert all(each["id"].endswith("#1") for each in passages[:1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "never"], "unknown policy 'never'"),
        (["--thresholds", "70b"], "no thresholds were published for '70b'"),
        (["--reuse", "some"], "unknown reuse 'some'"),
        (["--share", "0.5"], "exact has no share; blend has one"),
        (["--scope", "all"], "exact has no scope"),
        (["--reuse", "blend", "--share", "2"], "choose one from 0 to 1"),
        (["--family", "nosuch"], "unknown family 'nosuch'"),
        (["--draft", "nosuch"], "unknown draft 'nosuch'"),
        (["--temperature", "-1"], "temperature must be"),
        (["--corpus", "/nowhere/at/all.jsonl"], "does not exist"),
    ],
)
def test_wrong_values_are_refused_in_one_line_before_loading(cli, loading, corpus, words, message):
    done = ask(cli, corpus, *words)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert loading == []


def test_a_question_needs_a_corpus(cli, loading):
    done = cli("ask", "Who?")
    assert done.exit_code == 1
    assert "name files with --corpus" in done.stderr


def test_dragin_is_refused_without_attention_weights(cli, loading, corpus, tiny, monkeypatch):
    monkeypatch.setattr(tiny.model.forward, "weighs_plainly", lambda layer, tokens: False)
    done = cli("ask", "Who?", "--corpus", corpus, "--policy", "dragin")
    assert done.exit_code == 1
    assert "choose --policy fl, fs or flare" in done.stderr


def test_built_corpus_gives_the_same_answer_as_its_files(cli, loading, corpus, tmp_path):
    assert cli("index", "passages", tmp_path / "built", corpus).exit_code == 0
    from_files = json.loads(ask(cli, corpus, "--json").stdout)
    built = json.loads(ask(cli, tmp_path / "built", "--json").stdout)
    assert built["text"] == from_files["text"]


def test_cache_dir_is_filled_within_its_size_and_reused(cli, loading, corpus, tmp_path):
    folder = tmp_path / "rows"
    first = ask(cli, corpus, "--json", "--cache-dir", folder, "--cache-size", "50m")
    assert first.exit_code == 0, first.output
    kept = list(folder.rglob("*.safetensors"))
    assert 0 < sum(each.stat().st_size for each in kept) <= 50 << 20
    again = ask(cli, corpus, "--json", "--cache-dir", folder)
    assert json.loads(again.stdout)["text"] == json.loads(first.stdout)["text"]
    assert set(folder.rglob("*.safetensors")) == set(kept)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--cache-size", "2g"], "--cache-size needs --cache-dir"),
        (["--cache-dir", "rows", "--cache-size", "much"], "such as 500m or 2g, not 'much'"),
        (["--cache-dir", "rows", "--cache-size", "0"], "such as 500m or 2g"),
        (["--cache-dir", "rows", "--reuse", "off"], "--reuse off keeps nothing"),
    ],
)
def test_wrong_cache_options_are_refused(cli, loading, corpus, more, message):
    done = ask(cli, corpus, *more)
    assert done.exit_code != 0
    assert message in done.stderr
    assert not loading
