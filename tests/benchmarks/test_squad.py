import json
import re

import pytest

from benchmarks.suites.squad import read
from benchmarks.suites.task import Gold
from graft.errors import InputError

ROWS = [
    {"context": f"Passage {i // 2} speaks.", "question": f"What {i}?", "answer": "it"}
    for i in range(14)
]


def save(folder, rows):
    (folder / "dev.json").write_text(json.dumps(rows))
    return folder


def passages(prompt):
    return re.findall(r"^\[\d\] (Passage \d+) speaks\.$", prompt.content[0]["content"], re.M)


def test_a_prompt_holds_the_questions_passage_and_two_others(tmp_path):
    prompts = read(save(tmp_path, ROWS))
    assert len({prompt.number for prompt in prompts}) == len(prompts) == 14
    right = []
    for place, prompt in enumerate(prompts):
        shown = passages(prompt)
        assert len(set(shown)) == len(shown) == 3
        assert f"Question: What {place}?" in prompt.content[0]["content"]
        right.append(shown.index(f"Passage {place // 2}"))
    assert set(right) == {0, 1, 2}
    assert read(tmp_path) == prompts


def test_a_passage_is_in_one_half_only(tmp_path):
    prompts = read(save(tmp_path, ROWS))
    odd, even = (
        {passage for p in prompts if p.number % 2 == half for passage in passages(p)}
        for half in (1, 0)
    )
    assert odd | even == {f"Passage {i}" for i in range(7)}
    assert not odd & even


def test_a_repeated_question_counts_once(tmp_path):
    assert read(save(tmp_path, [*ROWS, ROWS[3]])) == read(save(tmp_path, ROWS))


def test_the_layout_of_squad_itself_gives_the_same(tmp_path):
    paragraphs = [
        {
            "context": f"Passage {i} speaks.",
            "qas": [
                {"question": f"What {2 * i}?", "answers": [{"text": "it"}, {"text": "it"}]},
                {"question": f"What {2 * i + 1}?", "answers": {"text": ["it"]}},
                {"question": "What not?", "is_impossible": True},
            ],
        }
        for i in range(7)
    ]
    articles = [{"title": "A", "paragraphs": paragraphs[:3]}, {"paragraphs": paragraphs[3:]}]
    (tmp_path / "dev-v1.1.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    prompts = read(tmp_path)
    assert prompts == read(save(tmp_path, ROWS))
    assert {prompt.gold for prompt in prompts} == {Gold("passage", ("it",))}


def test_too_few_passages_are_refused(tmp_path):
    with pytest.raises(InputError, match="dev.json has 5 different passages, but squad needs 6"):
        read(save(tmp_path, ROWS[:10]))


@pytest.mark.parametrize("row", [{"context": "c"}, {"paragraphs": [{"context": "c"}]}])
def test_an_entry_that_is_no_question_is_named(tmp_path, row):
    with pytest.raises(InputError, match="dev.json, entry 15 is not a SQuAD question"):
        read(save(tmp_path, [*ROWS, row]))
