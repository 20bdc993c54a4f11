"""code_edit, agent, mt_bench, speed_bench, templates, and the table of a pool that fills."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import tiny_tokenizer

from benchmarks.__main__ import main
from benchmarks.decode import warm as warming
from benchmarks.decode.warm import WarmSettings, warm
from benchmarks.suites import agent, code_edit, mt_bench, speed_bench, templates
from benchmarks.suites.task import read_suite
from graft.bench.result_file import read_results
from graft.errors import InputError

CODE = """\
import os


class Other:
    pass


class Tool:
    def run(self, text):
        return self._name(text)

    def _name(self, text):
        return f"{self.path}: {text}"
"""
TASK = {
    "id": "tool_Tool__name",
    "file": "tool.py",
    "code": CODE,
    "instruction": "Refactor the `_name` method in the `Tool` class to be a top level function.",
}


@pytest.fixture
def tasks(tmp_path):
    rows = [TASK, {**TASK, "file": "other.py"}]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_code_edit_asks_for_the_whole_file(tasks):
    first, second = code_edit.read(tasks)
    assert (first.number % 2, second.number % 2) == (1, 0)
    assert CODE in first.content[0]["content"]
    assert first.document == CODE


def test_a_long_file_is_cut_around_its_class(tasks, monkeypatch):
    monkeypatch.setattr(code_edit, "MAX_CHARACTERS", 120)
    [first, _] = code_edit.read(tasks)
    assert first.document.startswith("import os\nclass Tool:")
    assert "Other" not in first.document
    assert len(first.document) == 120


def test_an_agent_session_has_real_tool_outputs(tasks):
    turns = [prompt for prompt in agent.read(tasks) if prompt.number % 2]
    calls = [json.loads(turn.gold.references[0].split("\n")[1]) for turn in turns]
    assert [call["name"] for call in calls] == [
        "outline", "search", "read", "read", "replace", "replace", "search",
    ]  # fmt: skip
    last = turns[-1].content
    assert "   12     def _name(self, text):" in last[7]["content"]
    assert "   10         return self._name(text)" in last[9]["content"]
    assert calls[4]["arguments"]["text"] == "        return _name(self, text)"
    assert last[-1]["content"].startswith("<tool_response>\nreplaced lines 12 to 13")
    for turn, after in zip(turns, turns[1:], strict=False):  # what was recorded comes next
        assert after.content[: len(turn.content)] == turn.content
        assert after.content[len(turn.content)]["content"] == turn.gold.references[0]


def test_a_task_without_a_named_method_is_refused(tmp_path):
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**TASK, "instruction": "Do it."}))
    with pytest.raises(InputError, match="line 1 is not a refactoring task"):
        agent.read(tmp_path)


def test_mt_bench_has_second_turns(tmp_path):
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 90, "category": "translation", "turns": ["other set"]},
    ]
    (tmp_path / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    [prompt] = mt_bench.read(tmp_path)
    assert (prompt.content[0]["content"], prompt.turns) == ("one", ("two",))


def prepared(folder, config, turns):
    path = folder / "speed" / config
    path.mkdir(parents=True)
    columns = {"question_id": ["a"], "category": ["coding"], "turns": [turns], "source": ["x"]}
    pq.write_table(pa.table(columns), path / "test.parquet")
    return path


def test_speed_bench_is_read_as_prepared(tmp_path):
    path = prepared(tmp_path, "qualitative", ["first", "second"])
    [prompt] = speed_bench.read(path)
    assert (prompt.category, prompt.turns) == ("coding", ("second",))
    prepared(tmp_path, "throughput_1k", ["long"])
    both = read_suite("speed_bench", tmp_path / "speed")
    assert [each.category for each in both] == ["qualitative/coding", "throughput_1k/coding"]


def test_speed_bench_that_is_not_prepared_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="prepare"):
        speed_bench.read(prepared(tmp_path, "qualitative", [""]))
    (tmp_path / "speed" / "empty").mkdir()
    with pytest.raises(InputError, match="no parquet"):
        speed_bench.read(tmp_path / "speed" / "empty")
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a file of SPEED-Bench"):
        speed_bench.read(tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="--data"):
        speed_bench.read(None)


def test_a_pool_that_fills_raises_the_tokens_per_step(tasks, monkeypatch):
    monkeypatch.setattr(warming, "read_tokenizer", lambda _: tiny_tokenizer())
    cold, filled, whole = warm(WarmSettings(suite="agent", data=tasks, split="all", parts=2))
    assert [row["requests"] for row in (cold, filled, whole)] == [7, 7, 14]
    assert filled["pool_tokens_per_step"] > filled["auto_tokens_per_step"]
    assert filled["pool_seconds"] < filled["auto_seconds"]
    assert whole["pool_tokens_per_step"] >= whole["auto_tokens_per_step"]


def test_parts_go_to_a_result_file(tasks, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(warming, "read_tokenizer", lambda _: tiny_tokenizer())
    out = tmp_path / "warm.jsonl"
    options = ["warm", "--suite", "agent", "--data", str(tasks), "--split", "all", "--parts", "1"]
    assert main([*options, "--out", str(out)]) == 0
    assert "| all | 14 |" in capsys.readouterr().out
    assert [row["part"] for row in read_results(out).rows] == ["1", "all"]


def test_suites_without_gold_answers_need_a_model(tasks, capsys, monkeypatch):
    monkeypatch.setattr(warming, "read_tokenizer", lambda _: tiny_tokenizer())
    assert main(["warm", "--suite", "code_edit", "--data", str(tasks), "--split", "all"]) == 1
    assert "--answers model" in capsys.readouterr().err


CENSUS = """\
There are 8,654 households out of which 30.1% have children, 56.3% are [[Marriage|married couples]].
The median income for a household in the town is $61,699.
Other text with 3 figures."""
BOX = "{{Taxobox\n| name = ''Agave''\n| status = {{Secure}}\n}}"


def pages(folder, *texts):
    made = (f"<page><title>T{i}</title><text x=''>{t}</text></page>" for i, t in enumerate(texts))
    (folder / "enwik8").write_text("\n".join(made))
    return folder


def test_templates_ask_for_what_the_article_has(tmp_path):
    text = f"As of the [[census]]{{{{GR|2}}}} of [[2000]], there are 9 people.\n{CENSUS}"
    people, households, incomes, box = templates.read(pages(tmp_path, text, f"{BOX}\nAn ''Agave''"))
    assert people.gold.references == ("As of the census of 2000, there are 9 people.",)
    assert households.content[0]["content"].endswith(
        "with these figures:\n- 8,654 households out of which\n- 30.1% have children\n"
        "- 56.3% are married couples"
    )
    assert "$61,699" in incomes.content[0]["content"]
    assert (box.category, box.gold.references[0]) == ("taxobox", BOX)
    assert box.content[0]["content"].startswith("An Agave\n\nFill in")
    assert [each.number % 2 for each in (people, households, incomes, box)] == [1, 1, 1, 0]


def test_templates_of_other_texts_are_refused(tmp_path):
    with pytest.raises(InputError, match="no page with a known template"):
        templates.read(pages(tmp_path, "nothing"))
