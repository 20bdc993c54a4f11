"""A run over questions with a tiny model: order, resuming, tables."""

import json
from dataclasses import replace

import pytest
from made_up_rows import Recorder
from tiny import tiny_engine, tiny_network

import graft
from benchmarks.__main__ import main
from benchmarks.rag.report import groups
from benchmarks.rag.run import plan, run
from benchmarks.rag.sets import find_sets
from benchmarks.rag.settings import RagSettings, RagVariant, as_variant
from benchmarks.report import report_of
from graft.bench.result_file import ResultFile, new_header, open_results, read_results
from graft.errors import InputError

ROWS = [
    {
        "question": f"Where is the apple {n}?",
        "answer": "water",
        "context": [[f"apple {n}", ["the apple is in the water"]], ["river", ["a boat"]]],
    }
    for n in range(4)
]


@pytest.fixture(scope="module")
def tiny():
    engine = tiny_engine(tiny_network(max_position_embeddings=16384))
    engine.model.prefixes.use(max_rows=100_000)
    return engine


@pytest.fixture
def settings(tmp_path, monkeypatch, tiny):
    (tmp_path / "hotpot.json").write_text("\n".join(map(json.dumps, ROWS)))
    checkpoint = type(tiny.loaded.checkpoint)
    monkeypatch.setattr(checkpoint, "fingerprint", "f" * 64, raising=False)
    monkeypatch.setattr(graft, "load", lambda name, **options: tiny, raising=False)
    return RagSettings(
        data=tmp_path,
        policies=("fl",),
        variants=("off:plain", "exact:igpg", "off:plain:guided"),
        max_tokens=12,
        threads=1,
    )


def measure(settings, out):
    with open_results(out) as file:
        assert run(settings, file, Recorder())
    return read_results(out)


def test_every_variant_gets_the_same_questions_in_turn(settings):
    made = list(plan(settings, find_sets(settings.data)))
    assert [each.question.number for each in made] == [1, 1, 1, 3, 3, 3]
    names = [each.variant.name for each in made]
    assert names[:3] == ["off:plain", "exact:igpg", "off:plain:guided"]
    assert names[3:] == ["exact:igpg", "off:plain:guided", "off:plain"]


def test_a_run_resumes_after_a_partial_line(settings, tmp_path):
    out = tmp_path / "out.jsonl"
    results = measure(settings, out)
    whole = out.read_text()
    assert len(results.rows) == 6
    measure(settings, out)
    assert out.read_text() == whole
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:-1]) + lines[-1][:20])
    again = measure(settings, out)
    assert len(again.headers) == 2
    assert [row["output"] for row in again.rows] == [row["output"] for row in results.rows]
    found = {group.variant: group for group in groups(again)}
    assert found["exact:igpg"].same == (2, 2)
    assert found["off:plain:guided"].same == (0, 0)  # another prompt
    text = report_of(again).as_markdown()
    assert "| hotpotqa | fl | exact:igpg | 2 |" in text
    assert "bug" not in text


def test_reuse_over_questions_is_marked_as_approximate(settings, tmp_path):
    names = ("off:plain", "cics:igpg", "cics+all:igpg", "exact+reorder:pld")
    results = measure(replace(settings, variants=names, max_tokens=40), tmp_path / "reuse.jsonl")
    rows = {name: [row for row in results.rows if row["variant"] == name] for name in names}
    assert not any(row["approximate"] or row.get("passages") for row in rows["off:plain"])
    for name in ("cics:igpg", "cics+all:igpg"):
        assert all(row["approximate"] and row["cache_bytes"] for row in rows[name])
    for row in (*rows["cics:igpg"], rows["cics+all:igpg"][0]):
        assert row["passage_hits"] < row["passages"]
    later = rows["cics+all:igpg"][1]  # has the passages of the first question
    assert later["passage_hits"] == later["passages"] > 0
    assert "fl cics:igpg is approximate: outputs may differ" in report_of(results).notes


def results_of(*rows):
    file = ResultFile()
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    file.begin(new_header("rag", {"dtype": "fp32", "variants": variants, "passages of 2wiki": 10}))
    for row in rows:
        file.row(row)
    return file.results


def made_up(question, variant, **more):
    row = {"set": "2wiki", "question": question, "policy": "fl", "variant": variant, "repeat": 0}
    counts = {"calls": 1, "tokens": 5, "steps": 4, "f1": 0.0, "exact": 0.0, "output": "a"}
    return row | counts | more


def test_reordered_prompts_are_not_compared():
    results = results_of(
        made_up(1, "off:plain"), made_up(1, "exact+reorder:igpg", output="b", reordered=True)
    )
    assert groups(results)[1].same == (0, 0)
    assert not any("bug" in note for note in report_of(results).notes)


def test_both_averages_of_a_speedup_and_the_change_of_f1():
    results = results_of(
        made_up(1, "off:plain", total_seconds=4.0, f1=1.0),
        made_up(2, "off:plain", total_seconds=2.0, f1=0.5),
        made_up(1, "exact:igpg", total_seconds=1.0, f1=1.0, steps=2),
        made_up(2, "exact:igpg", total_seconds=2.0, f1=0.0, steps=2),
        made_up(3, "exact:igpg", total_seconds=9.0, f1=0.3, steps=2),  # not in the baseline
    )
    quality, time = report_of(results).tables
    assert quality.rows[1][7] == "-25.0 (-50.0, +0.0)"
    assert time.rows[1][-1] == "2.00 / 2.50"  # 6 / 3, (4 + 1) / 2
    assert time.rows[1][-3] == "–"
    assert time.rows[1][8] == "2.00"
    assert any("2wiki 10" in note for note in report_of(results).notes)


def timed(question, variant, seconds, tokens):
    """A row with these seconds of every part; the first of two calls' tokens belong to prefill."""
    parts = {f"{part}_seconds": seconds for part in ("prefill", "decode", "total")}
    return made_up(question, variant, calls=2, tokens=tokens, **parts)


def test_a_shorter_answer_decodes_no_faster():
    rows = [timed(1, "off:plain", 4.0, tokens=42), timed(1, "off:plain:guided", 2.0, tokens=22)]
    _, time = report_of(results_of(*rows)).tables
    shown = dict(zip(time.columns, time.rows[1], strict=True))
    assert shown["decode x"] == "1.00 / 1.00"  # 4 s for 40 tokens, 2 s for 20
    assert shown["prefill x"] == shown["total x"] == "2.00 / 2.00"
    assert shown["tokens"] == "22.0"


def test_answer_without_decoded_tokens_has_no_decode_ratio():
    rows = [timed(1, "off:plain", 4.0, tokens=42), timed(1, "exact:igpg", 2.0, tokens=2)]
    assert report_of(results_of(*rows)).tables[1].rows[1][-2] == "–"


def test_gains_over_cached_demonstrations_are_a_table_of_their_own():
    rows = [
        timed(1, "off:plain", 8.0, tokens=42),
        timed(1, "demos:plain", 4.0, tokens=42),
        timed(1, "cics:igpg", 2.0, tokens=42),
    ]
    time, gains = report_of(results_of(*rows)).tables[1:]
    assert [row[-1] for row in time.rows] == ["1.00 / 1.00", "2.00 / 2.00", "4.00 / 4.00"]
    assert gains.title == "speed-up over demos:plain"
    assert gains.rows == [["2wiki", "fl", "cics:igpg", *["2.00 / 2.00"] * 3]]
    assert len(report_of(results_of(*rows[1:])).tables) == 2  # the baseline has these already


def test_variants_are_written_as_reuse_and_draft():
    expected = RagVariant("exact", "store:folder", guided=True)
    assert as_variant("exact:store:folder:guided") == expected
    assert as_variant("blend+0.30+all:igpg") == RagVariant("blend+all+0.3", "igpg")
    for wrong in ("exact", "exact:", "some:plain", "cics+0.3:igpg"):
        with pytest.raises(InputError):
            as_variant(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"policies": ("x",)},
        {"thresholds": "70b"},
        {"dtype": "x"},
        {"variants": ("off:nosuch",)},
    ],
)
def test_wrong_settings_are_refused(tmp_path, wrong):
    with pytest.raises(InputError):
        RagSettings(data=tmp_path, **wrong)


def test_the_command_measures_and_prints(settings, tmp_path, capsys):
    words = ["rag", "--data", tmp_path, "--policies", "fl", "--variants", "off:plain,exact:igpg"]
    words += ["--limit", 1, "--max-tokens", 12, "--threads", 1, "--out", tmp_path / "out.jsonl"]
    assert main([*map(str, words)]) == 0
    assert "| hotpotqa | fl | exact:igpg | 1 |" in capsys.readouterr().out
    assert main(["rag", "--variants", "off"]) == 1
    assert capsys.readouterr().err.startswith("error: 'off' is no variant")
