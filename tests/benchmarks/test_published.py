"""docs/results.md is what `python -m benchmarks.published` writes from results/."""

import re
from pathlib import Path

import pytest

from benchmarks.published.contents import SECTIONS, page
from benchmarks.published.figures import (
    decode_speedup,
    interval,
    pairs,
    same_outputs,
    select,
    span,
    tokens_per_step,
)
from graft.bench.statistics import Estimate

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").iterdir())


def row(variant, prompt, seconds, **fields):
    return {
        "session": 0, "suite": "spec_bench", "prompts": [prompt], "variant": variant,
        "temperature": 0.0, "batch": 1, "tokens": 11, "first_tokens": 1, "steps": 5,
        "decode_seconds": seconds, "output": "a", **fields,
    }  # fmt: skip


def test_committed_page_is_what_the_command_writes_and_short():
    committed = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert committed == page()
    assert len(committed.splitlines()) <= 255


def test_every_file_of_results_is_in_a_table():
    used = {name for section in SECTIONS for table in section.tables for name in table.files}
    assert {path.stem for path in RESULTS} == used


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_file_names_say_kind_and_machine(path):
    assert re.fullmatch(r"[a-z]+_(n1|h200|xeon)(_\w+)+\.jsonl", path.name)
    assert path.read_text(encoding="utf-8").startswith('{"record":"header","format":2,')


def test_speedup_pairs_the_same_prompt_of_the_same_session():
    rows = [row("plain", 1, 4.0), row("auto", 1, 2.0), row("auto", 2, 1.0)]
    rows += [row("plain", 2, 8.0, session=1)]
    assert len(list(pairs(rows, "auto"))) == 1
    assert decode_speedup(rows, "auto").mean == pytest.approx(2.0)


def test_answer_without_decoded_tokens_has_no_speedup():
    rows = [row("plain", 1, 4.0), row("auto", 1, 2.0, tokens=1)]
    assert decode_speedup(rows, "auto") is None


def test_select_takes_a_missing_field_as_zero():
    assert len(select([row("plain", 1, 1.0), row("plain", 2, 1.0, context=8)], context=0)) == 1


def test_first_tokens_do_not_count_as_tokens_of_a_step():
    assert tokens_per_step([row("auto", 1, 1.0)]) == 2.0


def test_outputs_of_a_batch_are_compared_one_by_one():
    rows = [row("plain", 1, 1.0, outputs=["a", "b"]), row("auto", 1, 1.0, outputs=["a", "c"])]
    assert same_outputs(rows, "auto") == (1, 2)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "–"),
        (Estimate(1.5, None, None, 1), "1.50"),
        (Estimate(1.0, 1.0, 1.0, 9), "1.00"),
        (Estimate(1.5, 1.25, 1.75, 9), "1.50 (1.25 to 1.75)"),
    ],
)
def test_interval_is_shown_where_there_is_one(found, text):
    assert interval(found) == text


def test_span_is_from_the_smallest_to_the_largest():
    assert span([1.5, 0.5, 1.0]) == "0.50 to 1.50"
