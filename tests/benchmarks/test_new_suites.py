"""needle, dialogue, reasoning, long: what stands in their prompts, wherever documents are cut."""

import json

import pytest
from tiny import tiny_tokenizer

from benchmarks.decode.cut import Cutter, planted
from benchmarks.suites import dialogue, long, max_answer_tokens, multi_news, needle, reasoning
from benchmarks.suites.task import Planted
from graft.errors import InputError

PARAGRAPHS = [f"Essay {n} is about the end of the {n}." for n in range(64)]


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def test_a_plant_is_between_paragraphs_at_its_share():
    document = "\n\n".join(["aaaa"] * 4)
    plants = (Planted(0, "first"), Planted(0.5, "x"), Planted(0.5, "y"), Planted(1, "last"))
    assert planted(document, plants).split("\n\n") == [
        "first", "aaaa", "aaaa", "x", "y", "aaaa", "aaaa", "last",
    ]  # fmt: skip
    assert planted(document, ()) == document


@pytest.fixture
def needles(tmp_path):
    text = "July 2010" + "".join(PARAGRAPHS) + "The end."  # the file has lost its line ends
    return needle.read(lines(tmp_path / "PaulGrahamEssays.json", [{"text": text}]))


def test_needles_are_a_grid_of_depths(needles):
    assert len(needles) == needle.TRIALS * len(needle.DEPTHS)
    assert {prompt.category for prompt in needles} == {
        "depth 0 %", "depth 25 %", "depth 50 %", "depth 75 %", "depth 100 %",
    }  # fmt: skip
    assert len({prompt.number for prompt in needles}) == len(needles)
    assert len({prompt.gold.references for prompt in needles}) == len(needles)
    halves = {prompt.document: {p.number % 2 for p in needles if p.document == prompt.document}
              for prompt in needles}  # fmt: skip
    assert all(len(half) == 1 for half in halves.values())


@pytest.mark.parametrize("most", [420, 700, 1500, 10_000])
def test_a_needle_survives_every_cut_at_its_depth(needles, most):
    cutter = Cutter(tiny_tokenizer())
    for prompt in needles[:5]:
        shown = tiny_tokenizer().decode(cutter.fit(prompt, most))
        [fact] = prompt.planted
        assert shown.count(fact.text) == 1
        before = shown.partition(fact.text)[0].count("Essay")
        behind = shown.partition(fact.text)[2].count("Essay")
        share = before / max(before + behind, 1)
        assert share == pytest.approx(fact.share, abs=0.3)


def dialogues(count):
    return [
        {
            "task": "GR" if n % 2 else "CM",
            "history": [
                {"user": f"question {n}.{turn}\n\nmore", "bot": f"reply {n}.{turn}"}
                for turn in range(3)
            ],
        }
        for n in range(count)
    ]


def test_a_dialogue_s_own_turns_are_spread_in_order_among_others(tmp_path, monkeypatch):
    monkeypatch.setattr(dialogue, "ASKED", 3)
    monkeypatch.setattr(dialogue, "OTHERS", 5)
    prompts = dialogue.read(lines(tmp_path / "mtbench101.jsonl", dialogues(9)))
    assert [(prompt.number, prompt.category) for prompt in prompts] == [
        (1, "CM"), (2, "GR"), (3, "CM"),
    ]  # fmt: skip
    shown = tiny_tokenizer().decode(Cutter(tiny_tokenizer()).fit(prompts[1], 10_000))
    places = [shown.index(f"User: question 1.{turn}") for turn in range(3)]
    assert places == sorted(places)
    assert "question 3.0" in shown[: places[0]]
    assert "question 5.1" in shown[places[0] : places[1]]
    assert shown.count("question 1.2") == 1  # asked, in the end
    assert "reply 1.2" not in shown
    assert "question 8.0" not in shown
    assert "question 2.0" not in shown
    assert prompts[1].gold.references == ("reply 1.2",)


def test_too_few_dialogues_are_an_error(tmp_path):
    folder = lines(tmp_path / "mtbench101.jsonl", dialogues(9))
    with pytest.raises(InputError, match="has 9 dialogues, but 600 are needed"):
        dialogue.read(folder)


def test_problems_request_a_boxed_number(tmp_path):
    rows = [{"problem": "Find x.", "answer": "025"}, {"problem": "Find y.", "answer": "7"}]
    prompts = reasoning.read(lines(tmp_path / "test.jsonl", [*rows, rows[0]]))
    assert [(p.number, p.category, p.gold.references) for p in prompts] == [
        (1, "aime", ("25",)), (2, "aime", ("7",)),
    ]  # fmt: skip
    assert "\\boxed{}" in prompts[0].content[0]["content"]


def test_suites_say_how_long_their_answers_are():
    assert max_answer_tokens("reasoning") == 4096
    assert max_answer_tokens("spec_bench") is None
    assert max_answer_tokens("poems") is None


@pytest.fixture
def four_sets(tmp_path):
    meeting = {
        "meeting_transcripts": [{"speaker": "A", "content": "We begin."}],
        "general_query_list": [{"query": "Sum up.", "answer": "They began."}],
        "specific_query_list": [{"query": "Who spoke?", "answer": "A."}],
    }
    lines(tmp_path / "qmsum" / "test.jsonl", [meeting])
    news = [{"context": f"News {n}.", "answers": ["Short."]} for n in range(3)]
    lines(tmp_path / "longbench_v1" / "multi_news.jsonl", news)
    document = {"input": "A text.", "instructions": ["Say."], "outputs": ["It says."]}
    lines(tmp_path / "leval" / "Open-ended-tasks" / "gov_report_summ.jsonl", [document])
    question = {"context": "A text.", "question": "Which?", "answer": "B", "length": "short"}
    question |= {f"choice_{letter}": letter for letter in "ABCD"}
    lines(tmp_path / "longbench_v2" / "short.0.jsonl", [question])
    return tmp_path


def test_long_is_the_four_sets_together(four_sets):
    prompts = long.read(four_sets)
    counted = [(name, sum(p.category == name for p in prompts)) for name in long.SETS]
    assert counted == [("qmsum", 2), ("multi_news", 3), ("leval", 1), ("longbench_v2", 2)]
    assert len({prompt.number for prompt in prompts}) == len(prompts)
    alone = multi_news.read(four_sets / "longbench_v1")
    together = [prompt for prompt in prompts if prompt.category == "multi_news"]
    assert [p.number % 2 for p in alone] == [p.number % 2 for p in together]
    assert all(prompt.gold for prompt in prompts)


def test_a_missing_set_of_long_is_an_error(four_sets):
    (four_sets / "leval" / "Open-ended-tasks" / "gov_report_summ.jsonl").unlink()
    (four_sets / "leval" / "Open-ended-tasks").rmdir()
    (four_sets / "leval").rmdir()
    with pytest.raises(InputError, match="has no folder leval; put leval there"):
        long.read(four_sets)
    with pytest.raises(InputError, match="long needs --data: a folder with the folders qmsum"):
        long.read(None)
