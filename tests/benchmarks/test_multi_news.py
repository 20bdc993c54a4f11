import json

import pytest

from benchmarks.suites.multi_news import read
from graft.errors import InputError

ROWS = [
    {"input": "", "context": "Passage 1:\nIt rained. NEWLINE_CHAR NEWLINE_CHAR It poured.\n"},
    {"input": "", "context": "Passage 1:\nThe sun shone."},
]


def save(folder, rows):
    (folder / "multi_news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_row_is_a_prompt_whose_line_breaks_are_line_breaks(tmp_path):
    prompts = read(save(tmp_path, [*ROWS, ROWS[0]]))
    assert [(prompt.number, prompt.category) for prompt in prompts] == [
        (1, "multi_news"),
        (2, "multi_news"),
    ]
    assert prompts[0].document == "Passage 1:\nIt rained.\n\nIt poured."
    [message] = prompts[0].content
    assert message["content"].count(prompts[0].document) == 1
    assert "Write one summary" in message["content"].partition("It poured.")[2]


@pytest.mark.parametrize("row", [{}, {"context": " "}, {"context": ["a"]}])
def test_a_line_that_is_no_row_is_named(tmp_path, row):
    with pytest.raises(InputError, match="line 3 is not a row of LongBench"):
        read(save(tmp_path, [*ROWS, row]))


def test_answers_are_gold_where_there_are_some(tmp_path):
    told = {**ROWS[0], "answers": ["Rain.", "Much rain."]}
    first, second = read(save(tmp_path, [told, ROWS[1]]))
    assert (first.gold.kind, first.gold.references) == ("rouge", ("Rain.", "Much rain."))
    assert second.gold is None
