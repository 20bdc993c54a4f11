"""Published files are measured again by what stands in them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_answers import Recorder

from graft.bench.again import Again, Compared, compare, every_file, notes, settings_of
from graft.bench.metrics import Ratio
from graft.bench.records import Likelihood, read_results
from graft.bench.runner import run
from graft.bench.workers import Idle
from graft.errors import InputError

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def published(settings, fake_workers, tmp_path):
    out = tmp_path / "published.jsonl"
    asked = settings(limit=1, drafts=("plain", "auto"), peers=("hf",), temperatures=(0.0,))
    run(asked, out, Recorder())
    run(replace(asked, temperatures=(0.0, 1.0)), out, Recorder())
    return out


def test_the_settings_are_those_of_every_session(published, questions, tiny_folder):
    asked = settings_of(read_results(published), questions)
    assert [list(found.temperatures) for found in asked] == [[0.0], [0.0, 1.0]]
    for found in asked:
        assert (found.suite, found.data, found.limit) == ("spec_bench", questions, 1)
        assert (list(found.drafts), list(found.peers)) == (["plain", "auto"], ["hf"])
        assert (found.dtype, found.max_tokens, found.repeats) == ("fp32", 8, 1)
        assert found.model == str(tiny_folder)


def test_a_session_that_asked_the_same_is_not_asked_again(published, questions):
    results = read_results(published)
    results.sessions.append(results.sessions[-1])  # a stopped run that went on
    assert len(settings_of(results, questions)) == 2


def test_suites_are_found_under_their_names(published, questions):
    assert settings_of(read_results(published), questions.parent)[0].data == questions


def test_what_is_called_otherwise_here_may_be_said(published, questions):
    found, _ = settings_of(read_results(published), questions, model="other", dtype=None)
    assert (found.model, found.dtype) == ("other", "fp32")


def test_prompts_are_asked_in_the_groups_of_their_session(
    settings, fake_workers, questions, tmp_path
):
    out = tmp_path / "groups.jsonl"
    for limit, batch in ((1, 2), (2, 3)):
        asked = settings(limit=limit, batches=(batch,), drafts=("plain", "auto"))
        run(asked, out, Recorder())
    again = Again.of(out, questions, tmp_path / "again")
    assert again.measure(again.out, Recorder())
    compared = compare(again.published, read_results(again.out))
    assert {each.cell[1] for each in compared} == {2, 3}
    for each in compared:
        answers = again.published.answers.values()
        groups = [answer for answer in answers if answer.batch == each.cell[1]]
        assert each.prompts == len(groups) / 2
        assert each.same == each.prompts > 0


@pytest.fixture
def with_peers(settings, fake_workers, tmp_path):
    """A file with other engines in it, one of which got an option, and a GGUF file."""
    out, gguf = tmp_path / "peers.jsonl", tmp_path / "weights.gguf"
    gguf.touch()
    asked = settings(
        limit=1, drafts=("plain",), peers=("hf", "vllm", "vllm-ngram", "llama"), gguf=gguf,
        interpreters={"vllm": "py", "llama": "py"}, peer_options={"vllm": ("eager",)},
    )  # fmt: skip
    run(asked, out, Recorder())
    return out, gguf


def test_peers_are_measured_again_whose_python_is_named(with_peers, questions):
    published, gguf = with_peers

    def peers(**changes):
        (found,) = settings_of(read_results(published), questions, **changes)
        return list(found.peers), dict(found.peer_options)

    vllm, both = {"vllm": "py"}, {"vllm": "py", "llama": "py"}
    assert peers(interpreters={}) == (["hf"], {})
    assert peers(interpreters=vllm) == (["hf", "vllm", "vllm-ngram"], {"vllm": ["eager"]})
    assert "llama" not in peers(interpreters=both)[0]  # it has no weights
    assert "llama" in peers(interpreters=both, gguf=gguf)[0]


def test_peers_that_are_left_out_are_named_with_what_they_need(with_peers, questions, tmp_path):
    published, _ = with_peers
    watch = Recorder()
    again = Again.of(published, questions, tmp_path / "again", interpreters={})
    assert again.measure(again.out, watch)
    told = "\n".join(watch.lines)
    assert "vllm-ngram is left out: it needs --peer-python vllm=PATH" in told
    assert "llama is left out: it needs --peer-python llama=PATH" in told


def test_likelihoods_of_gold_are_asked_for_again_where_there_are_some(published, questions):
    found = read_results(published)
    assert settings_of(found, questions)[0].quality == "answers"
    key = 1, 0, False
    found.likelihoods[key] = Likelihood(*key, tokens=4, log_likelihood=-8.0)
    assert settings_of(found, questions)[0].quality == "likelihood"
    there = replace(found, likelihoods={key: Likelihood(*key, tokens=4, log_likelihood=-6.0)})
    assert "1 readings: -2.0000 published, -1.5000 here" in "\n".join(notes(found, there))


def test_the_same_is_asked_again_and_compared_cell_by_cell(published, questions, tmp_path):
    again = Again.of(published, questions, tmp_path / "again")
    assert again.measure(again.out, Recorder())
    compared = compare(again.published, read_results(again.out))
    assert [(each.cell[2], each.system) for each in compared] == [
        (temperature, system) for temperature in (0.0, 1.0) for system in ("plain", "auto", "hf")
    ]
    for each in compared:
        assert (each.prompts, each.same) == (3, 3)
        assert each.steps[0] == each.steps[1]
        if each.system != "plain":
            assert each.change.mean == pytest.approx(1)
            assert each.verdict == "same"
    table = again.table()
    assert table.count("| same |") == 4
    assert "published.jsonl" in table
    assert "GPUs" not in table


def test_files_go_on_with_the_workers_of_the_one_before(
    published, fake_workers, questions, tmp_path
):
    second = tmp_path / "second.jsonl"
    shutil.copy(published, second)
    with Idle() as idle:
        kept = []
        for file in (published, second):
            again = Again.of(file, questions, tmp_path / "again")
            assert again.measure(again.out, Recorder(), idle)
            kept.append(dict.fromkeys(worker.process.pid for worker in idle._workers))
        assert len(kept[0]) == 2  # graft and hf
        assert kept[0].keys() == kept[1].keys()
        asked = len(fake_workers())
        other = Again.of(published, questions, tmp_path / "other", dtype="bf16")
        assert other.measure(other.out, Recorder(), idle)
        assert len(fake_workers()) > asked
        ended = [worker.process for worker in idle._workers]
        assert kept[0].keys().isdisjoint(process.pid for process in ended)
    assert all(process.poll() == 0 for process in ended)


def test_fewer_prompts_are_some_of_those_that_were_asked(
    settings, fake_workers, questions, tmp_path
):
    out = tmp_path / "published.jsonl"
    run(settings(limit=2, drafts=("plain",), temperatures=(0.0,)), out, Recorder())
    again = Again.of(out, questions, tmp_path / "again", limit=1)
    assert again.measure(again.out, Recorder())
    assert [each.prompts for each in compare(again.published, read_results(again.out))] == [3]


def test_a_file_that_cannot_be_measured_does_not_stop_the_others(tmp_path):
    measured, said = [], []

    def measure(file, idle):
        if file.name == "b":
            raise InputError("no prompts are left")
        measured.append(file.name)
        return True

    files = [tmp_path / name for name in "abc"]
    assert not every_file(files, measure, said.append)
    assert (measured, said) == (["a", "c"], ["b is left out: no prompts are left"])
    assert every_file(files[:1], measure, said.append)
    with pytest.raises(InputError, match="no prompts"):
        every_file(files[1:2], measure, said.append)


@pytest.mark.parametrize(
    ("asked", "limit", "chosen"),
    [(12, 5, 4), (12, 12, 12), (12, 99, 12), (7, 3, 1), (None, 3, 3), (12, None, 12)],
)
def test_fewer_prompts_lie_at_equal_distances(published, questions, asked, limit, chosen):
    results = read_results(published)
    for session in results.sessions:
        session["options"]["limit"] = asked
    assert settings_of(results, questions, limit=limit)[0].limit == chosen


def test_no_prompts_are_refused(published, questions):
    with pytest.raises(InputError, match="--limit"):
        settings_of(read_results(published), questions, limit=0)


def test_only_prompts_that_both_have_are_compared(published, questions, tmp_path):
    again = Again.of(published, questions, tmp_path / "again")
    again.measure(again.out, Recorder())
    lines = again.out.read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("question_ids") != [5]]
    again.out.write_text("\n".join(kept) + "\n")
    assert {each.prompts for each in compare(again.published, read_results(again.out))} == {2}


def test_what_else_is_different_is_said(published, questions, tmp_path):
    again = Again.of(published, questions, tmp_path / "again")
    again.measure(again.out, Recorder())
    again.published.sessions[0]["fixed"]["gpus"] = ["NVIDIA H200"]
    assert "GPUs: ['NVIDIA H200'] published, [] here" in again.table()


def test_a_file_is_not_measured_into_itself(published, questions):
    with pytest.raises(InputError, match="into itself"):
        Again.of(published, questions, published.parent)


def test_other_kinds_of_files_are_refused(tmp_path, questions):
    for name in ("kernels_h200_bf16", "rag_h200_bf16"):
        with pytest.raises(InputError, match="no suite of prompts"):
            Again.of(RESULTS / f"{name}.jsonl", questions, tmp_path / "again")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(InputError, match="holds no answers"):
        Again.of(empty, questions, tmp_path / "again")
    with pytest.raises(InputError, match="cannot be read"):
        Again.of(tmp_path / "nowhere.jsonl", questions, tmp_path / "again")


def test_a_file_of_which_nothing_could_be_measured_is_one_line(published, questions, tmp_path):
    again = Again.of(published, questions, tmp_path / "again")
    again.out.parent.mkdir()
    again.out.write_text(published.read_text().splitlines()[0] + "\n")
    assert again.table().count("\n") == 1


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (Ratio(1.02, 1.01, 1.03, 9), "same"),  # sure, and of no account
        (Ratio(1.2, 0.9, 1.6, 9), "same"),
        (Ratio(1.2, 1.1, 1.3, 9), "faster"),
        (Ratio(0.8, 0.7, 0.9, 9), "slower"),
        (Ratio(0.8, None, None, 1), "slower"),
        (None, ""),
    ],
)
def test_verdicts(change, verdict):
    found = Compared((0, 1, 0.0), "auto", 9, None, None, change, (1.0, 1.0), 9)
    assert found.verdict == verdict


def test_every_published_file_of_prompts_says_how_to_measure_it_again(tmp_path):
    found = []
    for file in sorted(RESULTS.glob("*.jsonl")):
        try:
            found.append(Again.of(file, tmp_path, tmp_path).asked[0].suite)
        except InputError as error:  # of kernels, servers, training: commands of their own
            assert "no suite of prompts" in str(error)  # noqa: PT017
    assert len(found) > 60
    assert {"spec_bench", "humaneval", "squad", "medqa", "qmsum", "longbench_v2"} <= set(found)
