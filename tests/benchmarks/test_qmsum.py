import gzip
import json

import pytest

from benchmarks.suites.qmsum import read
from graft.errors import InputError


def meeting(name, *queries):
    turns = [("Chair", f"Welcome to {name}.\n"), ("Ann", " "), ("Ben", "Who  pays?")]
    return {
        "topic_list": [],
        "general_query_list": [{"query": "Summarize the meeting. ", "answer": "It was."}],
        "specific_query_list": [{"query": query, "answer": "x"} for query in queries],
        "meeting_transcripts": [{"speaker": who, "content": said} for who, said in turns],
    }


MEETINGS = [meeting("A", "Why A?", "Who A?", "Why A?"), meeting("B", "Why B?"), meeting("C")]


def save(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def test_every_query_comes_once_after_the_whole_transcript(tmp_path):
    prompts = read(save(tmp_path / "test.jsonl.gz", MEETINGS).parent)
    assert len(prompts) == 6
    first = prompts[0]
    assert first.document == "Chair: Welcome to A.\nBen: Who pays?"
    assert first.category == "qmsum"
    [message] = first.content
    assert f"\n\n{first.document}\n\n" in message["content"]
    assert message["content"].endswith("Query: Summarize the meeting.")
    ends = [prompt.content[0]["content"].rpartition("Query: ")[2] for prompt in prompts]
    assert ends[1:3] == ["Why A?", "Who A?"]


def test_a_meeting_is_in_one_half(tmp_path):
    prompts = read(save(tmp_path / "val.jsonl.gz", MEETINGS))
    halves = {(prompt.document, prompt.number % 2) for prompt in prompts}
    assert len(halves) == 3
    assert {half for _, half in halves} == {0, 1}
    assert len({prompt.number for prompt in prompts}) == 6


@pytest.mark.parametrize(
    "row",
    [
        {"meeting_transcripts": MEETINGS[0]["meeting_transcripts"]},
        {**MEETINGS[0], "meeting_transcripts": []},
        {**MEETINGS[0], "general_query_list": [], "specific_query_list": []},
        {**MEETINGS[0], "specific_query_list": [{"query": " "}]},
        {**MEETINGS[0], "meeting_transcripts": [{"speaker": "Ann", "content": None}]},
    ],
)
def test_a_line_that_is_no_meeting_is_named(tmp_path, row):
    with pytest.raises(InputError, match="line 2 is not a QMSum meeting"):
        read(save(tmp_path / "test.jsonl.gz", [MEETINGS[0], row]))


def test_a_folder_without_it_is_an_error_that_explains_data(tmp_path):
    with pytest.raises(InputError, match="cannot be read; --data is the folder with test.jsonl"):
        read(tmp_path)


def test_the_answer_is_gold(tmp_path):
    prompts = read(save(tmp_path / "test.jsonl.gz", MEETINGS))
    assert [prompt.gold.references for prompt in prompts[:2]] == [("It was.",), ("x",)]
    assert {prompt.gold.kind for prompt in prompts} == {"rouge"}
