"""A run over questions with a tiny model: turns, lines, going on, figures."""

import json
from dataclasses import replace

import pytest
from tiny import tiny_engine, tiny_network

import graft
from benchmarks.rag import __main__ as entry
from benchmarks.rag import run as runner
from benchmarks.rag.records import Asked, RagResults, is_rag, read_rag_results
from benchmarks.rag.report import report
from benchmarks.rag.settings import RagSettings, Way, as_way
from benchmarks.rag.tables import as_markdown, as_tables
from graft.bench.lines import Lines
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
    engine.model.prefixes.use(most_rows=100_000)
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
        ways=(Way("off", "plain"), Way("exact", "igpg"), Way("off", "plain", guided=True)),
        max_tokens=12,
        threads=1,
    )


def test_every_way_answers_the_same_questions_by_turns(settings):
    from benchmarks.rag.sets import find_sets

    made = list(runner.turns(settings, find_sets(settings.data)))
    assert [turn.question.number for turn in made] == [1, 1, 1, 3, 3, 3]
    assert [turn.way.name for turn in made[:3]] == ["off:plain", "exact:igpg", "off:plain:guided"]
    assert [turn.way.name for turn in made[3:]] == ["exact:igpg", "off:plain:guided", "off:plain"]


def test_a_run_is_written_line_by_line_and_goes_on(settings, tmp_path):
    out = tmp_path / "out.jsonl"
    assert runner.run(settings, out, Lines())
    assert is_rag(out)
    whole = out.read_text()
    results = read_rag_results(out)
    assert len(results.answers) == 6
    assert runner.run(settings, out, Lines())
    assert out.read_text() == whole  # nothing was left to do
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed in the middle of a line
    assert runner.run(settings, out, Lines())
    again = read_rag_results(out)
    assert len(again.sessions) == 2
    outputs = {key: each.output for key, each in results.answers.items()}
    assert {key: each.output for key, each in again.answers.items()} == outputs
    told = report(again)
    assert told.baseline == "off:plain"
    exact = next(row for row in told.rows if row.way == "exact:igpg")
    assert (exact.same, exact.compared, exact.questions) == (2, 2, 2)
    guided = next(row for row in told.rows if row.way == "off:plain:guided")
    assert guided.compared is None
    assert json.loads(json.dumps(told.as_dict()))["rows"]
    assert "exact:igpg" in as_markdown(told)
    assert len(as_tables(told)) == 2


def test_reuse_over_questions_is_measured_as_what_it_is(settings, tmp_path):
    names = ("off:plain", "cics:igpg", "cics+all:igpg", "exact+reorder:pld")
    asked_for = replace(settings, ways=tuple(map(as_way, names)), max_tokens=40)
    out = tmp_path / "reuse.jsonl"
    assert runner.run(asked_for, out, Lines())
    answers = read_rag_results(out).answers.values()
    by_way = {name: [each for each in answers if each.way == name] for name in names}
    assert not any(each.approximate or each.passages for each in by_way["off:plain"])
    for name in ("cics:igpg", "cics+all:igpg"):
        assert all(each.approximate and each.cache_bytes for each in by_way[name])
    for each in (*by_way["cics:igpg"], by_way["cics+all:igpg"][0]):
        assert each.passage_hits < each.passages
    later = by_way["cics+all:igpg"][1]  # finds what the first question found
    assert later.passage_hits == later.passages > 0
    told = report(read_rag_results(out))
    rows = {row.way: row for row in told.rows}
    assert rows["cics:igpg"].approximate
    assert rows["off:plain"].hit_rate is None
    assert rows["cics:igpg"].hit_rate < rows["cics+all:igpg"].hit_rate < 1
    assert "cics:igpg ~" in as_markdown(told)


def test_reordered_prompts_are_not_held_against_others():
    answers = [
        asked(1, "off:plain", output="a"),
        asked(1, "exact+reorder:igpg", output="b", reordered=True),
    ]
    header = {
        "fixed": {"dtype": "fp32"},
        "options": {"ways": [each.way for each in answers]},
        "corpora": {"2wiki": 10},
    }
    told = report(RagResults([header], {each.key: each for each in answers}))
    assert told.rows[1].compared is None
    assert "exact+reorder:igpg changes prompts: it reorders passages" in told.notes
    assert not any("must not happen" in note for note in told.notes)


def asked(question, way, **more):
    return Asked(
        set="2wiki",
        question=question,
        policy="fl",
        way=way,
        repeat=0,
        session=0,
        language="b",
        **more,
    )


def test_both_averages_of_a_speed_up_and_the_change_of_f1():
    answers = [
        asked(1, "off:plain", total_seconds=4.0, f1=1.0, calls=1, tokens=5, steps=4),
        asked(2, "off:plain", total_seconds=2.0, f1=0.5, calls=1, tokens=5, steps=4),
        asked(1, "exact:igpg", total_seconds=1.0, f1=1.0, calls=1, tokens=5, steps=2),
        asked(2, "exact:igpg", total_seconds=1.0, f1=0.0, calls=1, tokens=5, steps=2),
        asked(3, "exact:igpg", total_seconds=9.0, f1=0.3),  # the baseline has no such answer
    ]
    header = {
        "fixed": {"dtype": "fp32"},
        "options": {"ways": ["off:plain", "exact:igpg"]},
        "corpora": {"2wiki": 10},
    }
    told = report(RagResults([header], {each.key: each for each in answers}))
    row = told.rows[1]
    assert row.speedups["total"].ratio_of_means == 3.0  # 6 / 2
    assert row.speedups["total"].mean_of_ratios == 3.0  # (4 + 2) / 2
    assert row.speedups["prefill"] is None
    assert row.f1_change.mean == -0.25
    assert row.f1_change.low < -0.25 < row.f1_change.high
    assert row.tokens_per_step == 2.0
    assert any("10" in note for note in told.notes)


def test_ways_are_written_as_reuse_and_draft():
    assert as_way("exact:store:folder:guided") == Way("exact", "store:folder", guided=True)
    assert as_way("blend+0.30+all:igpg") == Way("blend+all+0.3", "igpg")
    for wrong in ("exact", "exact:", "some:plain", "cics+0.3:igpg"):
        with pytest.raises(InputError):
            as_way(wrong)


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"policies": ("x",)}, {"dtype": "x"}, {"ways": (Way("off", "nosuch"),)}]
)
def test_settings_are_checked(tmp_path, wrong):
    with pytest.raises(InputError):
        RagSettings(data=tmp_path, **wrong)


def test_the_bare_command_measures_and_prints(settings, tmp_path, monkeypatch, capsys):
    words = ["--data", tmp_path, "--policy", "fl", "--way", "off:plain,exact:igpg", "--limit", "1"]
    words += ["--max-tokens", "12", "--threads", "1", "--out", tmp_path / "out.jsonl"]
    monkeypatch.setattr("sys.argv", ["benchmarks.rag", *map(str, words)])
    assert entry.main() == 0
    assert "| hotpotqa | fl | exact:igpg | 1 |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["benchmarks.rag", "--way", "off"])
    assert entry.main() == 1
    assert capsys.readouterr().err.startswith("error: 'off' is no way to make rounds")
