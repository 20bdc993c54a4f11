"""Summaries of decode results, and the table and notes made of them."""

import json

import pytest
from made_up_rows import pair, results, row
from rich.console import Console

from graft.bench.summary import notes, summarize
from graft.bench.table import as_dict, heading, tables
from graft.errors import InputError


def rows_of(found, baseline=None):
    return {(each.category, each.variant): each for each in summarize(found, baseline)[1]}


def notes_of(found):
    return notes(found, *summarize(found))


def test_summaries_are_per_category_and_overall_against_the_baseline():
    found = results(*pair(1), *pair(3, "rag", faster=8.0), *pair(5, "rag", faster=2.0))
    rows = rows_of(found)
    assert list(dict.fromkeys(category for category, _ in rows)) == ["qa", "rag", "all"]
    assert rows["rag", "auto"].decode.mean == pytest.approx(4)
    assert rows["all", "auto"].decode.count == 3
    assert rows["qa", "auto"].total.mean == pytest.approx(3 / 2)
    assert rows["qa", "auto"].prefill.mean == 1
    assert rows["qa", "auto"].tokens_per_second == pytest.approx(10)
    assert rows["qa", "auto"].tokens_per_step == 2
    assert rows["qa", "auto"].accepted_by_source == {"prompt": 5}
    assert rows["qa", "plain"].decode.mean == 1
    assert rows_of(found, "auto")["qa", "plain"].decode.mean == pytest.approx(1 / 2)


def test_only_prompts_of_both_variants_are_compared():
    lonely = row(prompts=[9], variant="auto", decode_seconds=100.0)
    rows = rows_of(results(*pair(1), lonely))
    assert rows["qa", "auto"].prompts == 1
    assert rows["qa", "auto"].decode.mean == pytest.approx(2)


def test_repeats_count_once_by_their_median():
    rows = rows_of(results(*pair(1), *pair(1, faster=4.0, repeat=1)))
    assert rows["qa", "auto"].decode.count == 1
    assert rows["qa", "auto"].decode.mean == pytest.approx(2.0 / 0.75)


def test_different_outputs_are_counted_and_placed_and_reported():
    mixed = [*pair(1), *pair(3, output="b"), *pair(5, output="c")]
    each = rows_of(results(*mixed))["qa", "auto"]
    assert (each.same, each.compared, each.differ_at) == (1, 3, 2.5)
    assert any("2 of 3 outputs differ" in n and "report it" in n for n in notes_of(results(*mixed)))
    assert any("bf16 rounds" in note for note in notes_of(results(*mixed, dtype="bf16")))


def test_samples_of_another_engine_are_not_compared_but_greedy_outputs_are():
    engine = {"variant": "vllm", "exactness": "", "output": "b"}
    assert rows_of(results(row(), row(**engine)))["qa", "vllm"].same == 0
    sampled = results(row(temperature=1.0), row(**engine, temperature=1.0))
    assert rows_of(sampled)["qa", "vllm"].compared is None


def test_batches_are_compared_output_by_output():
    both = {"prompts": [1, 3], "batch": 2, "category": "mixed", "tokens": 22}
    tokens = {"two": [[1, 2], [3, 4]], "other": [[1, 2], [3, 5]]}
    given = row(**both, output="two"), row(**both, variant="auto", output="other")
    each = rows_of(results(*given, tokens=tokens))["mixed", "auto"]
    assert each.prompts == 2
    assert each.total_tokens_per_second == pytest.approx(22 / 3)
    assert (each.same, each.compared, each.differ_at) == (1, 2, 2)


def test_contexts_are_cells_of_their_own():
    _, found = summarize(results(*pair(1, context=512), *pair(1, faster=8.0, context=1024)))
    means = {each.context: each.decode.mean for each in found if each.variant == "auto"}
    assert means == {512: pytest.approx(2), 1024: pytest.approx(8)}


@pytest.mark.parametrize(
    ("count", "faster", "text"),
    [
        (1, 2.0, "auto (s, greedy): one prompt has no interval; measure more"),
        (4, 2.0, "auto (s, greedy): 4 prompts are too few for a reliable interval (2.00 to 2.00)"),
        (9, 1.0, "auto (s, greedy): with 9 prompts the interval 1.00 to 1.00 includes 1"),
    ],
)
def test_weak_intervals_are_noted(count, faster, text):
    found = results(*(each for number in range(count) for each in pair(number, faster=faster)))
    assert notes_of(found)[0].startswith(text)


def test_strong_intervals_have_no_note():
    assert notes_of(results(*(each for number in range(9) for each in pair(number)))) == []


def test_failures_and_notes_of_headers_are_noted_once():
    broken = row(variant="vllm", prompts=[3], error="out of memory")
    found = notes_of(results(*pair(1), broken, notes=("a", "a")))
    assert found[0] == "a"
    assert found[-1] == "vllm: 1 measurements failed"


def test_a_baseline_without_results_is_refused():
    with pytest.raises(InputError, match="no results of 'vllm'"):
        summarize(results(*pair(1)), "vllm")
    with pytest.raises(InputError, match="no measurements yet"):
        summarize(results())


def test_table_shows_every_variant_of_a_cell():
    found = results(*pair(1), *pair(3, "rag", faster=8.0), *pair(1, temperature=1.0))
    console = Console(width=110, record=True, file=open("/dev/null", "w"))
    for table in tables(summarize(found)[1]):
        console.print(table.as_rich())
    text = console.export_text()
    for part in ("s, greedy", "s, temperature 1", "8.00", "2.00", "1/1"):
        assert part in text
    assert heading(found).startswith("tiny, fp32; ")
    assert json.loads(json.dumps(as_dict(found)))["baseline"] == "plain"
