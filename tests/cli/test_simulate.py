import json
from pathlib import Path

import pytest
from made_up_rows import row

from graft.bench.result_file import new_header, open_results

RECORDINGS = Path(__file__).parents[1] / "guard" / "recordings.jsonl"
WHOLE = ("all", "mixed")  # of all prompts; a batch has several categories


def test_drafts_are_ranked(cli):
    done = cli("simulate", str(RECORDINGS), "--draft", "copy,pld")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].strip() == "costs recorded: spec_bench, greedy"
    ranked = [line.split()[0] for line in lines if line.startswith(("copy", "plain", "pld"))]
    assert ranked[-3:] == ["copy", "plain", "pld"]  # greedy, sampled, then both together
    assert "steps a second" in lines[-1]


def test_outcomes_are_printed_as_json(cli):
    words = ["--draft", "copy", "--costs", "reference,llama-8b@h200", "--batch", "1,4", "--context",
             "4k", "--json"]  # fmt: skip
    done = cli("simulate", str(RECORDINGS), *words)
    printed = json.loads(done.stdout)
    whole = [each for each in printed["outcomes"] if each["predicted"]["category"] in WHOLE]
    assert len(whole) == 2 * 2 * 2 * 2  # costs, batches, temperatures, drafts
    assert {each["priced_context"] for each in whole} == {4096}
    speedups = {
        each["costs"]: predicted["decode"]["mean"]
        for each in whole
        for predicted in [each["predicted"]]
        if [predicted[name] for name in ("variant", "batch", "temperature")] == ["copy", 1, 0.0]
    }
    assert speedups["llama-8b@h200"] > speedups["reference"] > 1  # nodes are free there
    assert printed["steps"] > 0


def test_tables_for_a_document(cli):
    done = cli("simulate", str(RECORDINGS), "--draft", "copy", "--markdown")
    assert "| copy |" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--draft sd", "draft 'sd' cannot be replayed"),
        ("--draft copy+eagle2", "draft 'eagle2' cannot be replayed"),
        ("--draft store", "draft 'store' cannot be replayed"),
        ("--draft ,", "no drafts to replay"),
        ("--costs nowhere", "unknown costs 'nowhere'"),
        ("--costs llama-8b@tpu", "unknown hardware 'tpu'"),
        ("--like smollm2", "names no model and hardware"),
        ("--batch 0", "--batch takes whole numbers from 1 on"),
        ("--batch 9", "--batch 9 needs 9 prompts"),
        ("--context much", "--context takes whole numbers such as 4k"),
    ],
)
def test_wrong_options_are_refused_in_one_line(cli, words, line):
    done = cli("simulate", str(RECORDINGS), *words.split())
    assert done.exit_code == 1
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_without_prompts_is_refused(cli, tmp_path):
    path = tmp_path / "old.jsonl"
    with open_results(path) as file:
        file.begin(new_header("decode", {"max_tokens": 8}))
        file.row(row(token_ids=[[1, 2]]))
    done = cli("simulate", str(path))
    assert done.exit_code == 1
    assert "has no prompts" in done.stderr


def test_one_suite_twice_is_refused(cli):
    done = cli("simulate", str(RECORDINGS), str(RECORDINGS), "--draft", "copy")
    assert "once more" in done.stderr
