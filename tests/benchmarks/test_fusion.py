"""The ablations of CASD and RASD: every variant gives plain decoding's text."""

from argparse import Namespace

import pytest
from tiny import tiny_draft_model, tiny_engine

import graft
from benchmarks.decode.fusion import FUSED, Runs, report

PROMPT = [40, 41, 42, 50, 51, 60, 61, 40, 41, 42]


@pytest.fixture
def runs(monkeypatch):
    engine = tiny_engine(draft_model=tiny_draft_model())
    monkeypatch.setattr(graft, "load", lambda *_, **__: engine, raising=False)
    names = ("model", "draft_model", "dtype", "device", "store")
    options = Namespace(**dict.fromkeys(names), max_tokens=24, temperature=0.0)
    return Runs(options)


def test_variants_answer_alike_and_count_accepted_lengths(runs):
    variants = runs.variants()
    assert {"tree", "casd", "casd-prompt", "rasd-pld", "rasd-pld-unpruned"} == variants.keys()
    runs.engine.drafters.update(variants)
    rows = {name: runs.time(PROMPT, name) for name in ("plain", *variants)}
    assert len({row["output"] for row in rows.values()}) == 1
    for row in rows.values():
        lengths = row["lengths"]
        assert sum(lengths.values()) == row["steps"]
        assert sum(length * steps for length, steps in lengths.items()) == row["tokens"] - 1
    assert rows["plain"]["lengths"].keys() == {1}
    assert max(rows["casd"]["lengths"]) > 1


@pytest.mark.parametrize("name", [each for each in FUSED if each != "rasd-rest"])
def test_fused_trees_accept_no_less_than_their_parts(runs, name):
    sums = runs.replay(PROMPT, name)
    assert sums["below a part"] == 0
    parts = [sums["part 0 accepted"], sums["part 1 accepted"]]
    assert sums["union accepted"] >= max(parts) > 0


def test_report_shows_accepted_lengths(tmp_path, capsys, monkeypatch):
    row = {"part": "timed", "suite": "s", "prompt": 0, "tokens": 9, "steps": 4, "decode": 1.0}
    row |= {"nodes": 8, "accepted": 4, "output": 1}
    lengths = {"plain": {"1": 8}, "casd": {"1": 3, "11": 1}}
    cases = [{"variant": name, "prompt": number} for name in lengths for number in range(4)]
    rows = [{**row, **case, "lengths": lengths[case["variant"]]} for case in cases]
    monkeypatch.setattr("benchmarks.decode.fusion.read_results", lambda _: Namespace(rows=rows))
    report(tmp_path)
    printed = capsys.readouterr().out
    assert "| casd | 75% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 25% |" in printed
