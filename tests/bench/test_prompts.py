"""The user's own prompts, in all shapes."""

import json

import pytest
from tiny import tiny_engine

from graft.bench.prompts import Prompt, encode, read_prompts
from graft.errors import InputError


def written(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_prompts_messages_documents_and_spec_bench(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path = written(
        tmp_path / "a.jsonl",
        {"prompt": "What is it?", "documents": ["It is a cat."], "category": "qa"},
        {"messages": chat},
        {"id": 7, "messages": chat, "documents": "A text."},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
    )
    first, second, third, fourth = read_prompts([path])
    assert first.messages[0]["content"] == "Document 1:\n\nIt is a cat.\n\nWhat is it?"
    assert first.category == "qa"
    assert second == Prompt(2, chat)
    assert third.id == 7
    assert third.messages[0] == chat[0]
    assert third.messages[1]["content"].startswith("Document 1:\n\nA text.")
    assert fourth == Prompt(81, [{"role": "user", "content": "First."}], "writing")


def test_a_text_file_is_one_prompt_and_ids_are_unique(tmp_path):
    paths = [tmp_path / "one.txt", tmp_path / "two.md"]
    for path in paths:
        path.write_text(f"Tell me about {path.stem}.\n")
    found = read_prompts(paths)
    assert [prompt.id for prompt in found] == [1, 2]
    assert found[0].messages[0]["content"] == "Tell me about one."
    assert found[0].category == tmp_path.name


def test_limit_selects_prompts_at_equal_distances(tmp_path):
    path = written(tmp_path / "a.jsonl", *({"prompt": f"number {n}"} for n in range(1, 11)))
    assert [prompt.id for prompt in read_prompts([path], 3)] == [1, 4, 7]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"question": "x"}, "line 1 is not"),
        ({"prompt": " "}, "line 1 is not"),
        ({"messages": []}, "line 1 is not"),
        (["x"], "line 1 is not"),
    ],
)
def test_other_lines_are_refused(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_prompts([written(tmp_path / "a.jsonl", line)])


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_prompts([tmp_path / "nothing.jsonl"])
    with pytest.raises(InputError, match="no prompts"):
        read_prompts([written(tmp_path / "a.jsonl")])
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_prompts([tmp_path / "empty.txt"])


def test_prompts_that_are_too_long_are_left_out_with_a_note():
    engine = tiny_engine()
    short = Prompt(1, [{"role": "user", "content": "the end"}])
    long = Prompt(2, [{"role": "user", "content": "the end " * engine.context_length}])
    found, notes = encode(engine, [short, long], max_tokens=4)
    assert [each.id for each in found] == [1]
    assert notes == ["1 of 2 prompts are too long for the model and left out"]
    with pytest.raises(InputError, match="no prompt fits"):
        encode(engine, [long], max_tokens=4)
