import json
import time

import pytest

import graft
from graft.cli import show
from graft.verify.verdict import Promise

JSON_STATS = {
    "prompt_tokens",
    "tokens",
    "steps",
    "tokens_per_step",
    "prefill_seconds",
    "decode_seconds",
    "tokens_per_second",
    "accepted_by_source",
}


def test_answer_goes_to_stdout_and_statistics_to_stderr(cli, engine, document):
    done = cli("run", "How fast?", "--doc", document)
    assert done.exit_code == 0
    assert done.stdout == "Four hours.\n"
    for part in (
        *("4 tokens", "16.0 tokens/s", "2.00 tokens per step", "first token"),
        *("prefill 200 tokens/s", "load 1.5 s", "accepted from: prompt 50 %; target 50 %"),
    ):
        assert part in done.stderr
    assert engine.streams[0].closed


def test_progress_is_printed_in_lines_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(show, "FIRST_LINE_SECONDS", 0.02)
    monkeypatch.setattr(show, "LINE_SECONDS", 0.02)

    def printed():
        for _ in range(500):
            if text := capsys.readouterr().err:
                return text
            time.sleep(0.01)

    with show.Spinner("loading") as spinner:
        assert printed() == "loading\n"
        spinner.update("prefill")
        assert printed() == "prefill\n"
    with show.Spinner("done at once"):
        pass
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_footer_reports_a_hierarchical_drafter(cli, engine, document):
    footer = cli("run", "How fast?", "--doc", document, "--draft", "triforce").stderr
    assert "lowest level accepted: 5 of 7 from prompt, 0 of 2 from output" in footer
    assert "lowest level" not in cli("run", "How fast?", "--doc", document).stderr


def test_prompt_is_one_message_with_the_document_before_the_question(cli, engine, document):
    cli("run", "How fast?", "--doc", document)
    [message] = engine.calls[0][0]
    assert message["role"] == "user"
    assert message["content"].index("within four hours") < message["content"].index("How fast?")


def test_options_reach_the_engine(cli, engine, document):
    options = "--temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --seed 3 --max-tokens 9"
    penalties = "--repetition-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3"
    rest = "--stop END --stop DONE --draft pld --dtype bf16 --device cpu --model some/model"
    rest += " --invariant --context-length 32k --kv-cache-dtype fp8"
    words = f"{options} {penalties} {rest}".split()
    done = cli("run", "How fast?", *words)
    assert done.exit_code == 0, done.output
    [(name, loading)] = engine.loaded
    assert name == "some/model"
    asked = {"dtype": "bf16", "device": "cpu", "draft": "pld", "invariant": True}
    asked |= {"context_length": 32768, "kv_cache_dtype": "fp8"}
    assert asked.items() <= loading.items()
    _, params, draft = engine.calls[0]
    assert draft == "pld"
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.1)
    assert (params.seed, params.max_tokens, tuple(params.stop)) == (3, 9, ("END", "DONE"))
    assert (params.repetition_penalty, params.presence_penalty) == (1.1, 0.2)
    assert params.frequency_penalty == 0.3


def test_json_is_one_object_and_nothing_else(cli, engine, document):
    done = cli("run", "How fast?", "--doc", document, "--json")
    printed = json.loads(done.stdout)
    known = {"text", "token_ids", "finish_reason", "seed", "lossless", "output", "stats"}
    assert set(printed) == known | {"documents", "load_seconds"}
    assert printed["load_seconds"] == 1.5
    assert printed["stats"]["prefill_tokens_per_second"] == 200
    assert (printed["lossless"], printed["output"]) == (True, "same text")
    assert printed["text"] == "Four hours."
    assert printed["token_ids"] == [5, 6, 7, 8]
    assert printed["seed"] == 77
    assert set(printed["stats"]) >= JSON_STATS


def test_compare_prints_identical_and_both_speedups(cli, engine):
    done = cli("run", "How fast?", "--compare")
    assert "identical: 4 tokens" in done.stdout
    assert "4.00x in decoding" in done.stdout
    assert "end to end" in done.stdout
    assert "first token" in done.stdout


def test_compare_uses_the_seed_of_the_drafted_run(cli, engine):
    cli("run", "How fast?", "--compare", "--temperature", "0.8")
    assert [(params.seed, draft) for _, params, draft in engine.calls] == [
        (None, "auto"),
        (77, "plain"),
    ]


@pytest.mark.parametrize(
    ("plain", "place", "same"), [([5, 6, 9, 8], 3, 2), ([5, 6, 7], 4, 3), ([1, 6, 7, 8], 1, 0)]
)
def test_compare_names_the_first_different_token(cli, engine, plain, place, same):
    engine.plain_tokens = plain
    engine.dtype = "bf16"
    assert f"numerically different at token {place};" in cli("run", "?", "--compare").stdout
    printed = json.loads(cli("run", "?", "--compare", "--json").stdout)["compare"]
    assert printed["identical"] is False
    assert printed["same_tokens"] == same
    assert printed["decode_speedup"] == 4.0
    assert printed["plain"]["time_to_first_token"] >= 0


def test_color_marks_accepted_tokens_and_prints_a_legend(cli, engine):
    done = cli("run", "How fast?", "--color")
    assert "Four\x1b[32m \x1b[0m\x1b[32mhours\x1b[0m." in done.stdout
    assert "prompt 50 %" in done.stderr
    assert "\x1b[32m" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_question_can_be_piped(cli, engine, arguments):
    assert cli("run", *arguments, stdin="How fast?\n").exit_code == 0
    assert engine.calls[0][0][0]["content"].endswith("How fast?")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["   "], "question is empty"),
        (["-"], "question is empty"),
        (["?", "--temperature", "-1"], "temperature"),
        (["?", "--top-p", "2"], "top_p"),
        (["?", "--max-tokens", "0"], "max_tokens"),
        (["?", "--draft", "magic"], "unknown draft 'magic'; choose one of "),
        (["?", "--draft", "copy+magic"], "unknown draft 'magic'; choose one of "),
        (["?", "--draft", "sd+copy"], "'sd' needs a draft model; name one (--draft-model)"),
        (["?", "--draft", "head", "--head", "none"], "'head' needs a draft head; name its folder"),
        (["?", "--draft", "casd", "--head", "none"], "'casd' needs a draft model or a head"),
        (["?", "--head", "nowhere"], "nowhere is not a draft head: give a folder with config.json"),
        (["?", "--dtype", "int3"], "unknown dtype 'int3'; choose from auto, fp32, bf16, "),
        (["?", "--doc", "no-such-file.txt"], "no-such-file.txt does not exist"),
        (["?", "--device", "gpu"], "unknown device 'gpu'"),
        (["?", "--draft-device", "cpu"], "--draft-device needs a draft model"),
        (["?", "--draft", "store:nowhere"], "nowhere is not a datastore"),
        (["?", "--retriever", "magic"], "unknown retriever 'magic'"),
        (["too long"], "the prompt has 9000 tokens"),
    ],
)
def test_wrong_values_are_refused_in_one_line(cli, engine, arguments, message):
    done = cli("run", *arguments)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_unknown_option_is_a_usage_error(cli, engine):
    assert cli("run", "?", "--temprature", "1").exit_code == 2
    assert cli("run", "?", "--temperature", "warm").exit_code == 2
    assert cli("run", "?", "--eta", "5000").exit_code == 2


def test_unknown_model_is_refused_in_one_line(cli):
    done = cli("run", "?", "--model", "no-such-model")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert "no-such-model" in done.stderr


def test_a_draft_model_is_loaded_and_may_be_combined(cli, engine):
    done = cli("run", "?", "--draft-model", "small", "--draft", "sd+copy")
    assert done.exit_code == 0
    assert engine.loaded[0][1]["draft_model"] == "small"
    assert engine.calls[0][2] == "sd+copy"


def test_a_head_is_loaded_and_may_be_combined(cli, engine, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = cli("run", "?", "--head", str(tmp_path), "--draft", "eagle2+copy")
    assert done.exit_code == 0
    assert engine.loaded[0][1]["head"] == str(tmp_path)
    assert engine.calls[0][2] == "eagle2+copy"


def test_installed_heads_are_used_unless_head_is_none(cli, engine):
    assert cli("run", "?").exit_code == 0
    assert cli("run", "?", "--head", "none").exit_code == 0
    assert [options["head"] for _, options in engine.loaded] == ["auto", None]


@pytest.mark.parametrize(
    ("promise", "message"),
    [
        (Promise.SAME_TEXT, None),
        (Promise.SAME_DISTRIBUTION, "same distribution as plain decoding, another text"),
        (Promise.OTHER_DISTRIBUTION, "not lossless: the verifier changes the model's distribution"),
    ],
)
def test_footer_reports_what_is_not_lossless(cli, engine, promise, message):
    engine.promise = promise
    words = "--draft rapid --verifier rapid --eta 20 --retriever static".split()
    done = cli("run", "How fast?", *words)
    assert done.exit_code == 0, done.output
    assert message in done.stderr if message else "lossless" not in done.stderr
    [(_, loading)] = engine.loaded
    assert loading["verifier"] == "rapid"
    assert loading["shift"].eta == 20
    assert loading["retriever"] == "static"
    printed = json.loads(cli("run", "How fast?", *words, "--json").stdout)
    assert printed["lossless"] == (promise < 2)
    assert printed["output"] == str(promise)


def test_numbers_of_methods_reach_the_engine(cli, engine):
    chain = "--gamma 10 --confidence 0.1 --retrieved 4k --verifier rapid --tail target --margin 2"
    rasd = "--rasd-top-k 3 --rasd-branches 2 --rasd-length 5 --rasd-requery"
    assert cli("run", "?", "--draft", "rapid", *chain.split()).exit_code == 0
    words = ["--draft", "rasd-pld", "--draft-model", "small", *rasd.split()]
    assert cli("run", "?", *words).exit_code == 0
    assert cli("run", "?").exit_code == 0
    copies = "--draft copy --casd-matches 3 --casd-length 4"
    assert cli("run", "?", *copies.split()).exit_code == 0
    first, second, none, third = [given for _, given in engine.loaded]
    assert third["casd"] == graft.Casd(matches=3, length=4)
    assert (first["gamma"], first["confidence"], first["retrieved"]) == (10, 0.1, 4096)
    assert first["shift"] == graft.Shift(tail="target", margin=2)
    assert second["rasd"] == graft.Rasd(top_k=3, branches=2, length=5, requery=True)
    assert (none["shift"], none["rasd"]) == (graft.Shift(), graft.Rasd())
    assert none["casd"] == graft.Casd()
    assert none["retrieved"] == "capped"
    assert not {"gamma", "confidence"} & none.keys()


@pytest.mark.parametrize("draft", ["magicdec", "magicdec-snapkv", "triforce", "window+copy"])
def test_gamma_is_for_drafts_of_the_target_too(cli, engine, draft):
    assert cli("run", "?", "--draft", draft, "--gamma", "2").exit_code == 0
    [(_, given)] = engine.loaded
    assert given["gamma"] == 2


def test_compare_allows_for_a_verifier_that_changes_the_distribution(cli, engine):
    engine.promise, engine.plain_tokens = Promise.OTHER_DISTRIBUTION, [5, 6, 9, 8]
    done = cli("run", "How fast?", "--draft", "rapid", "--verifier", "rapid", "--compare")
    assert "different at token 3, as the verifier allows: other distribution" in done.stdout
    assert "report" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--verifier best", "unknown verifier 'best'"),
        ("--verifier rapid", "draft 'auto' is not one; choose one of sd, rapid, rapid-up"),
        ("--verifier rapid-phat --draft rapid+copy", "draft 'rapid+copy' is not one"),
        ("--draft rapid --eta 5", "--eta needs --verifier rapid or rapid-phat"),
        ("--draft rapid --tail target", "--tail needs --verifier rapid or rapid-phat"),
        ("--draft rapid --margin 1", "--margin needs --verifier rapid or rapid-phat"),
        ("--draft copy --gamma 4", "--gamma needs --draft sd, rapid, rapid-up, window, magicdec,"),
        ("--draft magicdec --confidence 0.1", "--confidence needs --draft sd, rapid or rapid-up"),
        ("--draft copy --confidence 0.1", "--confidence needs --draft sd, rapid or rapid-up"),
        ("--rasd-top-k 3", "--rasd-top-k needs --draft rasd-pld or rasd-rest:FOLDER"),
        ("--casd-length 4", "--casd-length needs --draft casd, casd-prompt or copy"),
        ("--no-rasd-requery", "--rasd-requery needs --draft rasd-pld or rasd-rest:FOLDER"),
        ("--draft rapid --retrieved 5", "retrieved must be a number of tokens from 64 on"),
        ("--draft rapid --retrieved all", "--retrieved is a size such as 4k, or one of capped,"),
        ("--draft rapid-up", "draft 'rapid-up' needs a draft model"),
    ],
)
def test_unsuitable_verifiers_are_refused_before_loading(cli, engine, words, message):
    done = cli("run", "How fast?", *words.split())
    assert done.exit_code != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not engine.loaded


@pytest.mark.parametrize("length", ["much", "-1", "0"])
def test_wrong_context_length_is_refused_in_one_line(cli, engine, length):
    done = cli("run", "How fast?", "--context-length", length)
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "context" in done.stderr
    assert not engine.loaded
