"""RAPID's table from result files, and the script that fills them."""

import sys

import pytest
from made_up_answers import answer, results

from graft.bench.long_table import long_table
from graft.bench.records import Likelihood
from graft.bench.report import report
from graft.bench.task import Gold
from graft.errors import InputError


def file_of(draft_model, *systems):
    """Each on two prompts at 8K, of which it accepted half."""
    told = []
    for number in (1, 2):
        cell = {"question_ids": [number], "context": 8192}
        told.append(answer(**cell, system="plain", output="a", keeps="text"))
        told += [
            answer(
                **cell, system=name, output="a", keeps="text", decode_seconds=1.0, steps=5,
                drafted=10, accepted_by_source={"model": 5},
            )
            for name in systems
        ]  # fmt: skip
    found = results(*told, peers=systems)
    found.sessions[0]["fixed"]["draft model"] = draft_model
    for number in (1, 2):
        found.gold[number] = Gold("f1", ("x",))
        each = Likelihood(number, 8192, shortened=False, tokens=2, log_likelihood=-3.0 * number)
        found.likelihoods[each.key] = each
    return report(found)


def test_several_files_are_one_table():
    shown = long_table([file_of("none", "rapid"), file_of("small", "sd", "rapid")])
    rows = [line for line in shown.splitlines() if line.startswith("| 8K")]
    assert [row.split(" | ")[2:4] for row in rows] == [
        ["plain", "–"], ["rapid", "–"],
        ["plain", "small"], ["sd", "small"], ["rapid", "small"],
    ]  # fmt: skip
    assert "| 50% | 2.00 | 1.00 | 2.00 | text |" in rows[1]
    assert "-2.250 [+0.000]" in rows[1]


def test_without_plain_there_is_nothing_to_compare_with():
    found = results(answer(system="sd", output="a"), peers=("sd",))
    with pytest.raises(InputError, match="needs plain decoding"):
        long_table([report(found)])


def test_presets_that_are_not_there_are_left_out_with_a_line(script, monkeypatch, capsys, tmp_path):
    module = script("long_context")
    monkeypatch.setattr(module, "SELF", ("plain", "copy", "no-such-preset"))
    asked = {}
    monkeypatch.setattr(module, "run", lambda settings, out, watch: asked.update(s=settings))
    monkeypatch.setattr(module, "read_results", lambda path: results())
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "o.jsonl"), "--batch", "1,4"]
    monkeypatch.setattr(sys, "argv", ["long_context.py", *words])
    assert module.main() == 1  # nothing was measured: one line says so
    said = capsys.readouterr().err
    assert "no-such-preset is left out: unknown draft" in said
    assert list(asked["s"].drafts) == ["plain", "copy"]
    assert list(asked["s"].contexts) == [8192, 16384, 32768]
    assert list(asked["s"].batches) == [1, 4]
