import pytest

from benchmarks.suites.spec_bench import read
from graft.errors import InputError


def test_folder_and_file_give_the_same_questions(questions):
    prompts = read(questions)
    assert prompts == read(questions / "question.jsonl")
    assert [prompt.number for prompt in prompts] == list(range(1, 13))


def test_first_turn_is_a_chat_message_and_subjects_of_mt_bench_are_one_category(questions):
    prompts = read(questions)
    assert prompts[0].content == [{"role": "user", "content": "the end of the 1"}]
    assert [p.category for p in prompts] == ["mt_bench"] * 4 + ["rag"] * 4 + ["qa"] * 4


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"question_id": 1, "category": "qa", "turns": []}']
)
def test_a_line_that_is_no_question_is_named(tmp_path, line):
    good = '{"question_id": 1, "category": "qa", "turns": ["why"]}\n'
    file = tmp_path / "question.jsonl"
    file.write_text(good + line + "\n")
    with pytest.raises(InputError, match="question.jsonl, line 2 is not a Spec-Bench question"):
        read(file)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_an_unusable_file_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "question.jsonl").write_bytes(content)
    with pytest.raises(InputError, match="question.jsonl"):
        read(tmp_path)


def test_data_must_be_given():
    with pytest.raises(InputError, match="needs --data"):
        read(None)
