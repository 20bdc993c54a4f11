import sys
from dataclasses import replace

import pytest
from made_up_answers import answer, pair, results
from rich.console import Console

from graft.bench.report import report
from graft.bench.tables import as_markdown, as_tables, heading
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


def test_without_scipy_there_are_ratios_without_intervals_and_a_note(monkeypatch):
    for name in ("scipy", "scipy.stats"):
        monkeypatch.setitem(sys.modules, name, None)
    told = report(results(*pair(1), *pair(3, faster=8.0)))
    ratio = rows_of(told)["qa", "auto"].decode
    assert (ratio.mean, ratio.low, ratio.high, ratio.pairs) == (pytest.approx(4), None, None, 2)
    assert told.notes[0].startswith("no intervals: they need scipy; pip install 'graftlm[bench]'")


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


TOLD = {"drafted": 30, "drafted_by_source": {"prompt": 20, "store": 10}}


def test_drafting_has_a_table_of_its_own_in_every_form():
    plain, auto = pair(1, told=TOLD)
    plain = replace(plain, drafted=0, drafted_by_source={})
    told = report(results(plain, auto, answer(system="hf", output="a")))
    row = rows_of(told)["qa", "auto"]
    assert row.drafting.nodes_per_step == 6
    console = Console(width=100, record=True, file=open("/dev/null", "w"))
    for table in as_tables(told):
        console.print(table)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    place = lines.index("greedy: drafting")
    assert lines[place + 1 :] == [
        "category system tok/step nodes/step accepted by source",
        "qa auto 2.00 6.00 17% prompt 25% of 20, store 0% of 10",
    ]
    assert "| qa | auto | 2.00 | 6.00 | 17% | prompt 25% of 20, store 0% of 10 |" in (
        as_markdown(told)
    )
    told = {row["system"]: row["drafting"] for row in told.as_dict()["rows"]}
    assert told["auto"]["by_source"]["prompt"] == {"drafted": 20, "accepted": 5, "share": 0.25}
    assert told["plain"]["nodes_per_step"] == 0
    assert told["hf"] is None


def test_a_file_that_does_not_tell_sources_still_shows_nodes():
    text = as_markdown(report(results(*pair(1, told={"drafted": 30}))))
    assert "| qa | auto | 2.00 | 6.00 | 17% | – |" in text
    assert "drafting" not in as_markdown(report(results(*pair(1))))


def test_batches_show_the_speed_of_the_whole_and_are_compared_answer_by_answer():
    both = {"question_ids": [1, 3], "batch": 2, "category": "mixed", "tokens": 22}
    plain, auto = answer(**both, output="two"), answer(**both, system="auto", output="other")
    given = results(plain, auto)
    given.token_ids |= {"two": [[1, 2], [3, 4]], "other": [[1, 2], [3, 5]]}
    told = report(given)
    row = rows_of(told)["mixed", "auto"]
    assert row.prompts == 2
    assert row.total_tokens_per_second == pytest.approx(22 / 3)
    assert (row.same, row.compared, row.parted_at) == (1, 2, 2)
    assert "greedy, 2 at a time" in as_markdown(told)


def test_contexts_are_cells_of_their_own_and_one_table_has_them_side_by_side():
    short, long = pair(1, context=512), pair(1, faster=8.0, context=1024)
    told = report(results(*short, *long, *pair(3, context=512)))
    found = {(row.context, row.system): row for row in told.rows}
    assert found[512, "auto"].prompts == 2
    assert found[512, "auto"].decode.mean == pytest.approx(2)
    assert found[1024, "auto"].decode.mean == pytest.approx(8)
    text = as_markdown(told)
    assert "**greedy, context 512**" in text
    assert "**greedy, context 1K**" in text
    table = text.partition("**greedy: tokens per step by context**\n\n")[2].splitlines()
    assert table[:1] + table[2:5] == [
        "| category | system | 512 | 1K |",
        "| qa | prompts | 2 | 1 |",
        "| qa | plain | 1.00 | 1.00 |",
        "| qa | auto | 2.00 | 2.00 |",
    ]
    assert as_tables(told)[-1].title == "greedy: tokens per step by context"
    assert "by context" not in as_markdown(report(results(*short)))


def test_a_note_of_any_session_is_told_once():
    told = results(*pair(1, context=512))
    told.sessions = [told.sessions[0] | {"notes": notes} for notes in (["a"], ["a", "b"])]
    assert report(told).notes == ["a", "b"]


def test_markdown_is_a_table_with_as_many_cells_in_every_row():
    lines = as_markdown(report(results(*pair(1), *pair(3)))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert any("| qa | 2 | auto | 10.0 | 2.00 | 1.00 | 1.50 |" in line for line in table)
