import json

import pytest
from made_up_answers import HEADER, answer

from graft.bench import runner
from graft.bench.records import open_results


@pytest.fixture
def results(tmp_path):
    """A result file with two answers."""
    path = tmp_path / "results.jsonl"
    fixed = {"suite": "spec_bench", "model": "tiny", "dtype": "fp32", "max_tokens": 8, "threads": 2}
    about = {"hardware": {"cpu": "N1", "gpus": []}, "versions": {"graft": "0.1.0"}, "fixed": fixed}
    with open_results(path) as (_, writer):
        writer.header({**HEADER, **about, "options": {"draft": ["plain", "auto"], "peers": []}})
        for system, seconds in (("plain", 2.0), ("auto", 1.0)):
            writer.answer(answer(system=system, decode_seconds=seconds, output="a"), [[1, 2]])
    return path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "spec_bench needs --data: the folder with Spec-Bench's question.jsonl"),
        ("--data nowhere", "nowhere cannot be read; --data is the folder with question.jsonl"),
        ("--suite poems", "unknown suite 'poems'; choose one of dialogue, humaneval, leval"),
        ("--suite serve", "serve is a command of its own: graft bench serve --help"),
        ("--draft magic", "unknown draft 'magic'; choose one of auto, plain, pld, copy, igpg"),
        ("--draft plain,sd", "draft 'sd' needs a draft model; name one (--draft-model)"),
        ("--draft plain,head --head none", "draft 'head' needs a draft head; name its folder"),
        ("--draft auto --head nowhere", "nowhere is not a draft head's folder"),
        ("--draft ,", "nothing to measure; name presets with --draft or peers with --peers"),
        ("--peers sglang", "unknown peer 'sglang'; choose from hf, hf-pld, hf-assisted, hf-c"),
        ("--peers vllm", "vllm needs --python-vllm: the python of its environment"),
        ("--peers llama --python-llama x", "llama needs --gguf: the model's weights"),
        ("--peers hf-assisted", "hf-assisted needs --draft-model: a smaller model"),
        ("--gguf nowhere.gguf", "nowhere.gguf does not exist"),
        ("--context-length much", "--context-length is a number of tokens such as 32k"),
        ("--context-length 32k --peers hf", "--context-length is for Graft alone"),
        ("--draft auto@magic", "unknown verifier 'magic' in 'auto@magic'; choose one of walk"),
        ("--quality best", "--quality is one of answers, likelihood"),
        ("--load-options no", "--load-options is a JSON object"),
        ("--groups 0", "--groups must be at least 1, not 0"),
        ("--dtype fp8", "unknown dtype 'fp8'; choose from auto, fp32, bf16, fp16"),
        ("--temperature 0,hot", "--temperature takes numbers, separated by commas, not '0,hot'"),
        ("--temperature -1", "--temperature takes numbers from 0 to 100, such as 0,1"),
        ("--batch 1,0", "--batch takes whole numbers from 1 on, such as 1,4,16"),
        ("--batch 1.5", "--batch takes whole numbers, separated by commas, not '1.5'"),
        ("--context 1k,0", "--context takes numbers of tokens from 1 on, such as 1k,2k,4k"),
        ("--context ,", "--context takes numbers of tokens from 1 on, such as 1k,2k,4k"),
        ("--context 1m", "--context takes whole numbers such as 4k, separated by commas, not '1m'"),
        ("--limit 0", "--limit must be at least 1, not 0"),
        ("--peer-options []", "--peer-options is a JSON object such as"),
        ("--peer-options {\"hf\":\"-x\"}", "--peer-options names 'hf', which is not among --peers"),
        ("--baseline hf", "--baseline 'hf' is not among --draft and --peers"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_one_line(cli, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    done = cli("bench", *words.split())
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.glob("results*")) == []


def test_help_names_every_suite(cli):
    told = " ".join(cli("bench", "--help").stdout.split())
    assert (
        "Of dialogue, humaneval, leval, long, longbench_v2, medqa, multi_news, needle, qmsum, "
        "reasoning, spec_bench, spider, squad, rag." in told
    )


def test_report_prints_the_table_again(cli, results):
    done = cli("bench", "report", results)
    assert done.exit_code == 0, done.output
    assert "greedy: qa, 1 prompt" in done.stdout
    assert "2.00" in done.stdout


def test_report_for_documents_and_scripts(cli, results):
    assert "| qa | 1 | auto |" in cli("bench", "report", results, "--markdown").stdout
    told = json.loads(cli("bench", "report", results, "--json", "--baseline", "auto").stdout)
    assert told["baseline"] == "auto"
    assert told["rows"][0]["decode"]["mean"] == pytest.approx(0.5)


def test_report_of_something_else_is_one_line(cli, tmp_path):
    (tmp_path / "other.jsonl").write_text("{}\n")
    done = cli("bench", "report", tmp_path / "other.jsonl")
    assert done.exit_code == 1
    assert "other.jsonl, line 1 was not written by this version of graft bench" in done.stderr


def test_a_run_ends_with_table_plot_and_where_the_answers_are(cli, results, monkeypatch):
    pytest.importorskip("matplotlib")
    asked = []
    monkeypatch.setattr(runner, "run", lambda settings, out, watch: asked.append(settings) or True)
    words = "--draft plain,auto,auto --temperature 0,1 --batch 1,4 --category rag,qa --limit 3"
    words += " --context 512,1k"
    done = cli("bench", "--data", results.parent, *words.split(), "--out", results)
    assert done.exit_code == 0, done.output
    assert "greedy: qa" in done.stdout
    assert f"answers: {results}" in done.stderr
    assert results.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    [settings] = asked
    assert (settings.drafts, settings.temperatures) == (("plain", "auto"), (0.0, 1.0))
    assert (settings.batches, settings.categories, settings.limit) == ((1, 4), ("rag", "qa"), 3)
    assert (settings.contexts, settings.max_tokens) == ((512, 1024), 128)


def test_a_system_that_failed_shows_in_the_exit_code(cli, results, monkeypatch):
    monkeypatch.setattr(runner, "run", lambda settings, out, watch: False)
    assert cli("bench", "--data", results.parent, "--out", results).exit_code == 1


def test_an_interruption_says_how_to_go_on(cli, results, monkeypatch):
    def interrupted(settings, out, watch):
        watch.begin(10, 2)
        watch.turn("auto: rag")
        watch.advance()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    done = cli("bench", "--data", results.parent, "--out", results)
    assert done.exit_code == 130
    assert f"stopped; the same command goes on ({results})" in done.stderr


def test_report_writes_one_page_or_a_document(cli, results, tmp_path):
    pytest.importorskip("matplotlib")
    done = cli("bench", "report", results, results, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    assert text.count("<h2") == 2
    assert "<svg" in text
    assert cli("bench", "report", results, "--out", tmp_path / "page.md").exit_code == 0
    assert "| qa | 1 | auto |" in (tmp_path / "page.md").read_text()
    done = cli("bench", "report", results, "--out", tmp_path / "page.pdf")
    assert done.stderr.startswith("error: --out is a page, FILE.html or FILE.md, not")


def test_an_index_is_measured_and_shown_again(cli, tmp_path, monkeypatch):
    from graft.bench.index import measure

    monkeypatch.setattr(measure, "STEPS", 2)
    out = tmp_path / "index.jsonl"
    done = cli("bench", "index", "--sizes", "64", "--only", "ngram", "--repeats", "1", "--out", out)
    assert done.exit_code == 0, done.output
    assert "| ngram | 64 |" in done.stdout
    assert "| ngram | 64 |" in cli("bench", "report", out).stdout
    done = cli("bench", "report", out, "--plot", tmp_path / "plot.png")
    assert done.stderr.startswith(f"error: {out} has no --plot")


def test_a_server_that_is_not_there_is_one_line(cli):
    done = cli("bench", "serve", "--url", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "does not answer as an OpenAI server" in done.stderr
    assert done.stderr.count("\n") == 1


def test_peers_that_are_not_there_are_named_and_graft_is_measured_alone(cli, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "run", lambda settings, *_: asked.append(settings) or True)
    done = cli("bench", "peers", "--peers", "vllm", "--out", tmp_path / "none.jsonl")
    assert "vllm is left out: it needs --peer-python vllm=PATH" in done.stderr
    assert [settings.peers for settings in asked] == [()]
