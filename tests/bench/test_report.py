import pytest
from made_up_answers import answer, pair, results
from rich.console import Console

from graft.bench.report import as_markdown, as_tables, heading, report
from graft.errors import InputError


def rows_of(told):
    return {(row.category, row.system): row for row in told.rows}


def test_rows_are_per_category_and_overall_against_the_baseline():
    told = report(results(*pair(1), *pair(3, "rag", faster=8.0), *pair(5, "rag", faster=2.0)))
    rows = rows_of(told)
    assert told.baseline == "plain"
    assert list(dict.fromkeys(row.category for row in told.rows)) == ["qa", "rag", "all"]
    assert rows["rag", "auto"].decode.mean == pytest.approx(4)
    assert rows["all", "auto"].decode.pairs == 3
    assert rows["all", "auto"].prompts == 3
    assert rows["qa", "auto"].total.mean == pytest.approx(3 / 2)
    assert rows["qa", "auto"].prefill.mean == 1
    assert rows["qa", "auto"].tokens_per_second == pytest.approx(10)
    assert rows["qa", "auto"].tokens_per_step == 2
    assert rows["qa", "auto"].shares == {"prompt": 5 / 11}
    assert rows["qa", "plain"].decode.mean == 1


def test_another_baseline_turns_the_ratio_round():
    told = report(results(*pair(1), *pair(3, faster=8.0)), "auto")
    assert rows_of(told)["qa", "plain"].decode.mean == pytest.approx(1 / 4)


def test_only_prompts_both_answered_are_compared():
    plain, auto = pair(1)
    lonely = answer(question_ids=[9], system="auto", decode_seconds=100.0, output="a")
    rows = rows_of(report(results(plain, auto, lonely)))
    assert rows["qa", "auto"].prompts == 1
    assert rows["qa", "auto"].decode.mean == pytest.approx(2)


def test_repeats_are_one_run():
    first, second = pair(1), pair(1, faster=4.0, repeat=1)
    rows = rows_of(report(results(*first, *second)))
    assert rows["qa", "auto"].decode.pairs == 1
    assert rows["qa", "auto"].decode.mean == pytest.approx(2.0 / 0.75)


def test_differing_answers_are_counted_and_placed_and_in_fp32_reported():
    mixed = [*pair(1), *pair(3, output="b"), *pair(5, output="c")]
    told = report(results(*mixed))
    row = rows_of(told)["qa", "auto"]
    assert (row.same, row.compared, row.parted_at) == (1, 3, 2.5)
    assert told.notes == [
        "auto: 2 of 3 answers differ from the reference (temperature 0, batch 1); "
        "in fp32 this must not happen: please report it"
    ]
    assert "bf16 may round differently" in report(results(*mixed, dtype="bf16")).notes[0]


def test_sampled_answers_are_compared_within_graft_only():
    peer = answer(system="hf", temperature=1.0, output="b")
    told = report(results(*pair(1, temperature=1.0), peer), "hf")
    rows = rows_of(told)
    assert (rows["qa", "auto"].same, rows["qa", "auto"].compared) == (1, 1)
    assert rows["qa", "hf"].compared is None
    assert told.notes == []


def test_greedy_answers_of_peers_are_compared_too():
    peer = answer(system="hf", output="b")
    row = rows_of(report(results(*pair(1), peer)))["qa", "hf"]
    assert (row.same, row.compared, row.parted_at) == (0, 1, 2)


def test_failures_and_other_sessions_are_noted():
    plain, auto = pair(1)
    late = answer(system="hf", session=1, output="a")
    broken = answer(system="hf", question_ids=[3], error="out of memory")
    notes = report(results(plain, auto, late, broken)).notes
    assert notes == [
        "hf was partly measured in another session than the baseline",
        "hf: 1 measurements failed",
    ]


def test_a_baseline_that_was_not_measured_is_refused_by_name():
    with pytest.raises(InputError, match="no answers of 'vllm'; the baseline can be plain, auto"):
        report(results(*pair(1)), "vllm")
    with pytest.raises(InputError, match="holds no answers yet"):
        report(results())


def test_tables_fit_a_hundred_columns_and_say_everything():
    sampled = pair(1, temperature=1.0)
    told = report(results(*pair(1), *pair(3, "rag", faster=8.0), *pair(5, "rag"), *sampled))
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    for table in as_tables(told):
        console.print(table)
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100
    for part in ("greedy: rag, 2 prompts", "temperature 1: qa, 1 prompt", "4.00", "prompt 45%"):
        assert part in text
    assert "…" not in text
    assert "tiny, fp32, at most 8 tokens; Neoverse-N1, 2 threads" in heading(told)
    assert "torch 2.13.0, transformers 5.0" in heading(told)


def test_batches_show_the_speed_of_the_whole():
    plain = answer(question_ids=[1, 3], batch=2, category="mixed", tokens=22, output="a")
    told = report(results(plain))
    assert told.rows[0].prompts == 2
    assert told.rows[0].total_tokens_per_second == pytest.approx(22 / 3)
    assert "greedy, 2 at a time" in as_markdown(told)


def test_markdown_is_a_table_with_as_many_cells_in_every_row():
    lines = as_markdown(report(results(*pair(1), *pair(3)))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert any("| qa | 2 | auto | 10.0 | 2.00 | 1.00 | 1.50 |" in line for line in table)
