import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from made_up_answers import Recorder

from graft.bench.records import read_results
from graft.bench.runner import run
from graft.errors import InputError


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.jsonl"


def answers(out):
    return list(read_results(out).answers.values())


def test_every_system_answers_every_prompt_once_after_a_warm_up(settings, fake_workers, out):
    watch = Recorder()
    assert run(settings(limit=1, peers=("hf",)), out, watch)
    assert (watch.total, watch.done, watch.lines) == (9, 0, [])
    assert len(answers(out)) == 9
    asked = [(each["engine"], each["method"], each["seeds"][0]) for each in fake_workers()]
    assert asked[:6] == [
        ("graft", "plain", 1), ("graft", "plain", 1),  # unmeasured, measured
        ("graft", "auto", 1), ("graft", "auto", 1),
        ("hf", "plain", 1), ("hf", "plain", 1),
    ]  # fmt: skip
    assert asked[6:] == [
        ("graft", "auto", 5), ("hf", "plain", 5), ("graft", "plain", 5),
        ("hf", "plain", 9), ("graft", "plain", 9), ("graft", "auto", 9),
    ]  # fmt: skip


def test_nothing_but_its_length_may_end_an_answer(settings, fake_workers, out):
    assert run(settings(limit=1), out, Recorder())
    assert all(each["end_tokens"] for each in fake_workers())
    whole = out.with_name("whole.jsonl")
    assert run(settings(limit=1, ignore_eos=True), whole, Recorder())
    assert not fake_workers()[-1]["end_tokens"]
    assert read_results(whole).sessions[0]["fixed"]["ignore eos"]
    with pytest.raises(InputError, match="ignore eos"):
        run(settings(limit=2, ignore_eos=True), out, Recorder())


def test_rehearsed_answers_are_given_before_they_are_measured(settings, fake_workers, out):
    assert run(settings(limit=1, rehearsals=2, drafts=("plain", "auto")), out, Recorder())
    assert len(answers(out)) == 6
    asked = [(each["method"], each["seeds"][0]) for each in fake_workers()]
    assert asked[:8] == [("plain", 1)] * 4 + [("auto", 1)] * 4  # a warm-up first
    assert asked[8:14] == [("auto", 5)] * 3 + [("plain", 5)] * 3
    assert read_results(out).sessions[0]["fixed"]["rehearsals"] == 2
    with pytest.raises(InputError, match="rehearsals"):
        run(settings(limit=2, drafts=("plain", "auto")), out, Recorder())


def test_all_get_the_same_token_ids_and_ends(settings, fake_workers, out):
    run(settings(limit=1, split="all", categories=("qa",), peers=("hf",)), out, Recorder())
    asked = fake_workers()
    assert len({json.dumps([a["prompts"], a["end_tokens"], a["max_tokens"]]) for a in asked}) == 1
    assert asked[0]["end_tokens"] == [0]
    assert {(a["given"][2], a["given"][3]) for a in asked if a["engine"] == "hf"} == {
        ("--dtype", "float32")
    }


def test_records_say_what_was_measured(settings, fake_workers, out):
    run(settings(limit=1, categories=("rag",), peers=("hf-pld",)), out, Recorder())
    found = {answer.system: answer for answer in answers(out)}
    assert found["plain"].question_ids == [5]
    assert (found["plain"].prefill_seconds, found["plain"].decode_seconds) == (0.5, 1.0)
    assert (found["plain"].tokens, found["plain"].steps, found["plain"].tokens_per_step) == (
        5,
        2,
        2,
    )
    assert found["hf-pld"].accepted_by_source == {"lookup": 2}
    results = read_results(out)
    assert results.workers["hf-pld"]["versions"] == {"hf": "1.0"}
    [header] = results.sessions
    assert header["versions"]["torch"]
    assert header["hardware"]["cores"] >= 1
    assert header["fixed"]["max_tokens"] == 8


def test_a_run_goes_on_where_it_was_interrupted(settings, fake_workers, out):
    with pytest.raises(KeyboardInterrupt):
        run(settings(limit=1), out, Recorder(interrupt_after=3))
    assert len(answers(out)) == 3
    with out.open("a") as file:
        file.write('{"record":"answer","sui')
    watch = Recorder()
    assert run(settings(limit=1), out, watch)
    assert (watch.total, watch.done) == (6, 3)
    assert len(answers(out)) == 6
    assert {answer.session for answer in answers(out)} == {0, 1}
    before = out.read_bytes()
    assert run(settings(limit=1), out, Recorder())
    assert out.read_bytes() == before


def test_workers_end_with_the_run(settings, fake_workers, out, monkeypatch):
    started = []
    from graft.bench.worker import Worker

    start = Worker.start
    monkeypatch.setattr(Worker, "start", lambda self, env: (start(self, env), started.append(self)))
    with pytest.raises(KeyboardInterrupt):
        run(settings(limit=1, peers=("hf",)), out, Recorder(interrupt_after=4))
    run(settings(limit=1, peers=("hf",)), out, Recorder())
    assert len(started) == 4
    assert all(worker.process.poll() is not None for worker in started)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_tokens": 9}, "was measured with max_tokens 8, not 9"),
        ({"threads": 2}, "was measured with threads 1, not 2"),
        ({"dtype": "bf16"}, "was measured with dtype fp32, not bf16"),
    ],
)
def test_options_that_would_mix_what_cannot_be_compared_are_refused(
    settings, fake_workers, out, changes, line
):
    run(settings(limit=1, categories=("qa",)), out, Recorder())
    before = out.read_bytes()
    with pytest.raises(InputError, match=f"{line}, and cannot be compared; name another --out"):
        run(settings(limit=1, categories=("qa",), **changes), out, Recorder())
    assert out.read_bytes() == before


def test_other_questions_under_the_same_name_are_refused(settings, fake_workers, out, questions):
    run(settings(limit=1), out, Recorder())
    file = questions / "question.jsonl"
    file.write_text(file.read_text().replace("the end of", "the beginning of"))
    with pytest.raises(InputError, match="was measured with data"):
        run(settings(limit=1), out, Recorder())


def test_more_prompts_systems_and_temperatures_may_be_added(settings, fake_workers, out):
    run(settings(limit=1), out, Recorder())
    watch = Recorder()
    more = settings(limit=2, drafts=("plain", "auto", "pld"), temperatures=(0.0, 1.0), repeats=2)
    run(more, out, watch)
    assert (watch.total, watch.done) == (6 * 3 * 2 * 2, 6)


def test_auto_dtype_is_what_graft_takes_and_stays_so(settings, fake_workers, out):
    for _ in range(2):
        run(settings(limit=1, dtype="auto", peers=("hf",)), out, Recorder())
    assert [session["fixed"]["dtype"] for session in read_results(out).sessions] == ["bf16"]
    given = [each["given"] for each in fake_workers() if each["engine"] == "hf"]
    assert all(words[words.index("--dtype") + 1] == "bfloat16" for words in given)


def test_a_peer_without_the_dtype_is_left_out_with_a_line(settings, fake_workers, out):
    watch = Recorder()
    assert run(settings(limit=1, dtype="int8", peers=("hf",)), out, watch)
    assert watch.lines == ["hf is left out: it has no int8"]
    assert {answer.system for answer in answers(out)} == {"plain", "auto"}


def test_a_peer_with_options_may_join_but_not_change_them(settings, fake_workers, out):
    run(settings(limit=1), out, Recorder())
    assert run(settings(limit=1, peers=("hf",), peer_options={"hf": ["--a"]}), out, Recorder())
    for other in ({"hf": ["--b"]}, {}):
        with pytest.raises(InputError, match=r"was measured with hf options \['--a'\], not"):
            run(settings(limit=1, peers=("hf",), peer_options=other), out, Recorder())


def dying(settings, words, **changes):
    return settings(limit=1, peers=("hf",), peer_options={"hf": words}, **changes)


def test_a_dying_worker_is_one_line_and_the_others_go_on(settings, fake_workers, out):
    watch = Recorder()
    assert not run(dying(settings, ["--die-at", "3"]), out, watch)
    [line] = watch.lines
    assert "hf, prompt 5: ended with code 3 (out of memory); see" in line
    assert line.endswith("results.hf.log; the other systems go on")
    good = [answer.system for answer in answers(out) if answer.error is None]
    assert (good.count("plain"), good.count("auto"), good.count("hf")) == (3, 3, 1)
    assert sum(answer.error is not None for answer in answers(out)) == 1


def test_a_worker_that_cannot_start_is_one_line(settings, fake_workers, out):
    watch = Recorder()
    assert not run(dying(settings, ["--deaf"]), out, watch)
    assert "ended with code 1 (no such engine here)" in watch.lines[0]
    watch = Recorder()
    nowhere = replace(dying(settings, ["--deaf"]), interpreters={"hf": "/nowhere/python"})
    assert not run(nowhere, out, watch)
    assert "/nowhere/python cannot be run (No such file or directory)" in watch.lines[0]


def test_a_refused_request_is_written_down_and_tried_again(settings, fake_workers, out):
    watch = Recorder()
    assert run(dying(settings, ["--fail-at", "3"]), out, watch)
    assert "hf, prompt 5: ValueError: too long" in watch.lines[0]
    assert [answer.error for answer in answers(out) if answer.error] == ["ValueError: too long"]
    watch = Recorder()
    run(dying(settings, ["--fail-at", "3"]), out, watch)
    assert (watch.total - watch.done, watch.lines) == (1, [])
    assert not any(answer.error for answer in answers(out))


def test_a_killed_worker_is_named_by_its_signal(settings, fake_workers, out, monkeypatch):
    from graft.bench.worker import Worker

    ask = Worker.ask

    def shoot(worker, request):
        if "hf_peer.py" in worker.command[1]:
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        return ask(worker, request)

    monkeypatch.setattr(Worker, "ask", shoot)
    watch = Recorder()
    assert not run(settings(limit=1, peers=("hf",)), out, watch)
    assert "hf, prompt 1: ended with signal SIGKILL" in watch.lines[0]


def test_a_peer_of_another_version_is_not_mixed_in(settings, fake_workers, out):
    run(settings(limit=1, peers=("hf",)), out, Recorder())
    out.write_text(out.read_text().replace('"hf":"1.0"', '"hf":"0.9"'))
    watch = Recorder()
    assert not run(settings(limit=2, peers=("hf",)), out, watch)
    assert (
        "was measured with {'hf': '0.9'}, not {'hf': '1.0'}; name another --out" in watch.lines[0]
    )
    assert len(answers(out)) == 9 + 3 * 2 + 1  # the others, and one that says why not


def test_batches_go_as_one_request_to_a_worker_for_the_largest(settings, fake_workers, out):
    gguf = out.with_suffix(".gguf")
    gguf.write_bytes(b"")
    vllm = settings(
        split="all",
        limit=2,
        batches=(1, 2),
        drafts=("auto",),
        peers=("vllm", "llama"),
        interpreters={"vllm": sys.executable, "llama": sys.executable},
        gguf=gguf,
    )
    watch = Recorder()
    assert run(vllm, out, watch)
    assert watch.lines == ["llama takes one prompt at a time: no batches"]
    both = [answer for answer in answers(out) if answer.batch == 2]
    assert {answer.system for answer in both} == {"auto", "vllm"}
    assert both[0].category == "mixed"
    assert len(both[0].question_ids) == 2
    sizes = {
        (each["engine"], len(each["prompts"]), each["given"][each["given"].index("--batch") + 1])
        for each in fake_workers()
    }
    assert sizes == {
        ("graft", 1, "2"), ("graft", 2, "2"),
        ("vllm", 1, "2"), ("vllm", 2, "2"), ("llama", 1, "1"),
    }  # fmt: skip


def test_contexts_are_measured_apart_and_more_may_be_added(settings, fake_workers, out, tmp_path):
    rows = [{"context": f"{n} " + "the end " * (100 * n)} for n in (1, 3, 5)]
    (tmp_path / "multi_news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    news = {"suite": "multi_news", "data": tmp_path, "split": "all"}
    watch = Recorder()
    assert run(settings(**news, contexts=(1000,)), out, watch)
    line = "context 1000: 1 of 3 prompts are left out, which cannot be given that length"
    assert (watch.total, watch.lines) == (2 * 2, [line])
    watch = Recorder()
    assert run(settings(**news, contexts=(1000, 512)), out, watch)
    assert (watch.total, watch.done) == (2 * 2 + 2 * 3, 4)
    assert {(a.context, *a.question_ids) for a in answers(out)} == {
        (512, 1), (512, 2), (512, 3), (1000, 2), (1000, 3),
    }  # fmt: skip
    assert all(0.9 * a.context < a.prompt_tokens <= a.context for a in answers(out))
    assert [session["notes"] for session in read_results(out).sessions] == [[line], [line]]
    asked = {tuple(each["prompts"][0]) for each in fake_workers() if each["max_tokens"] == 8}
    assert {len(prompt) for prompt in asked} == {a.prompt_tokens for a in answers(out)} | {64}


def test_prompts_that_do_not_fit_the_model_are_left_out_with_a_line(
    settings, fake_workers, out, questions
):
    file = questions / "question.jsonl"
    file.write_text(file.read_text().replace("end of the 3", "end " * 1000))
    watch = Recorder()
    run(settings(), out, watch)
    assert watch.lines == ["1 prompts are left out: too long for the model"]
    assert watch.total == 2 * 5
