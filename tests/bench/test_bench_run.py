"""`graft bench` below the command line: presets in turn, other engines, files that resume."""

import json

import pytest
from made_up_rows import Recorder
from tiny import tiny_engine

from graft.bench.result_file import ENGINE, PROMPT, read_results
from graft.bench.run import BenchSettings, bench
from graft.bench.simulate.recordings import recordings_of
from graft.bench.summary import summarize
from graft.errors import InputError


@pytest.fixture(scope="module")
def engine():
    return tiny_engine(max_batch=2)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"the end of the {n}", "category": "qa"} for n in range(1, 5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def settings(prompts, **changes):
    return BenchSettings(**({"prompts": [prompts], "max_tokens": 6} | changes))


def test_presets_take_turns_and_generate_the_same_text(engine, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    found = bench(settings(prompts, drafts=("plain", "copy"), out=out), engine, Recorder())
    order = [(row["variant"], row["prompts"][0]) for row in found.rows]
    assert order[:4] == [("plain", 1), ("copy", 1), ("copy", 2), ("plain", 2)]
    _, summaries = summarize(found)
    assert all(each.same == each.compared == 4 for each in summaries)
    assert read_results(out).rows == found.rows
    [cell] = recordings_of(found, out).values()
    assert [each.number for each in cell] == [1, 2, 3, 4]


def test_a_file_resumes_where_it_was_interrupted(engine, prompts, tmp_path):
    chosen = settings(prompts, out=tmp_path / "out.jsonl", batches=(1, 2), temperatures=(0.0, 1.0))
    with pytest.raises(KeyboardInterrupt):
        bench(chosen, engine, Recorder(interrupt_after=5))
    progress = Recorder()
    found = bench(chosen, engine, progress)
    assert (progress.total, progress.done) == (24, 5)
    assert len(found.rows) == 24
    assert len(found.records[PROMPT]) == 4
    assert len(found.headers) == 2
    bench(chosen, engine, Recorder())
    assert len(read_results(chosen.out).headers) == 2  # nothing was left


def test_other_engines_get_the_same_tokens(engine, prompts, fake_workers):
    chosen = settings(prompts, drafts=("plain",), engines={"vllm": "", "transformers": ""}, limit=2)
    found = bench(chosen, engine, Recorder())
    assert {row["variant"] for row in found.rows} == {"plain", "vllm", "transformers"}
    requests = fake_workers()
    assert {request["engine"] for request in requests} == {"vllm", "transformers"}
    lengths = {row["prompts"][0]: row["prompt_tokens"] for row in found.rows}
    assert {len(each["prompts"][0]) for each in requests} <= set(lengths.values())
    assert [line["engine"] for line in found.records[ENGINE]].count("vllm") == 1


def test_an_engine_that_ends_is_given_up_and_the_others_continue(engine, prompts, fake_workers):
    chosen = settings(prompts, drafts=("plain",), engines={"vllm": "/no/such/python"})
    progress = Recorder()
    found = bench(chosen, engine, progress)
    assert len([row for row in found.rows if row["variant"] == "plain"]) == 4
    [failed] = [row for row in found.rows if row["variant"] == "vllm"]
    assert "cannot be run" in failed["error"]
    assert len(progress.lines) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafts": ()}, "--draft is empty"),
        ({"engines": {"sglang": ""}}, "unknown engine 'sglang'"),
        ({"engines": {"llama.cpp": ""}}, "llama.cpp needs --gguf"),
        ({"engines": {"transformers-assisted": ""}}, "needs --draft-model"),
        ({"batches": (0,)}, "--batch is a whole number"),
        ({"temperatures": (-1.0,)}, "--temperature is a number"),
        ({"max_tokens": 0}, "--max-tokens must be at least 1"),
    ],
)
def test_wrong_settings_are_refused(prompts, changes, message):
    with pytest.raises(InputError, match=message):
        settings(prompts, **changes)


def test_too_few_prompts_for_a_batch_are_refused(engine, prompts):
    with pytest.raises(InputError, match="--batch 8 needs 8 prompts; 4 are selected"):
        bench(settings(prompts, batches=(8,)), engine, Recorder())
