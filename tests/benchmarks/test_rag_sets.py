"""Question sets as their authors publish them, and how answers are scored."""

import gzip
import json

import pytest

from benchmarks.rag.scores import Scores, normal, predicted, score
from benchmarks.rag.sets import find_sets, read_set
from graft.errors import InputError

CONTEXT = [["Ann", ["Ann was born in 1950.", " She paints."]], ["Bob", ["Bob sings."]]]
HOTPOT = {"_id": "x", "question": " Who paints? ", "answer": "Ann", "context": CONTEXT}
IRCOT = {
    "question_text": "Who sings?",
    "answers_objects": [{"spans": ["Bob"]}],
    "contexts": [{"title": "Bob", "paragraph_text": "Bob sings. "}],
}
MUSIQUE = {
    "question": "Who?",
    "answer": "Ann Smith",
    "answer_aliases": ["Ann"],
    "paragraphs": [{"title": "T", "paragraph_text": "P"}],
}
STRATEGY = {"question": "Is it?", "answer": False}


def write(folder, name, rows, *, listed=False):
    text = json.dumps(rows) if listed else "\n".join(map(json.dumps, rows))
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def test_hotpot_as_lines_as_a_list_and_as_ircot_samples_it(tmp_path):
    write(tmp_path, "hotpot.json", [HOTPOT, {**HOTPOT, "question": "Again?"}])
    lines = read_set("hotpotqa", tmp_path)
    assert [each.text for each in lines.questions] == ["Who paints?", "Again?"]
    assert lines.questions[0].golds == ("Ann",)
    texts = [(each.id, each.title, each.text) for each in lines.passages]
    assert texts == [("1", "Ann", "Ann was born in 1950. She paints."), ("2", "Bob", "Bob sings.")]
    write(tmp_path, "hotpot.json", [HOTPOT], listed=True)
    assert len(read_set("hotpotqa", tmp_path).questions) == 1
    (tmp_path / "hotpot.json").unlink()
    write(tmp_path, "dev_subsampled.jsonl.gz", [IRCOT])
    [asked] = read_set("hotpotqa", tmp_path).questions
    assert (asked.text, asked.golds) == ("Who sings?", ("Bob",))


def test_questions_without_paragraphs_are_left_out(tmp_path):
    write(tmp_path, "wikihop.json", [{"question": "None?", "answer": "no"}, HOTPOT])
    assert [each.text for each in read_set("2wiki", tmp_path).questions] == ["Who paints?"]


def test_musique_takes_aliases_for_right(tmp_path):
    write(tmp_path, "musique.json", [MUSIQUE])
    assert read_set("musique", tmp_path).questions[0].golds == ("Ann Smith", "Ann")


def test_strategyqa_has_its_paragraphs_in_a_file_of_their_own(tmp_path):
    write(tmp_path, "strategy.json", [STRATEGY])
    write(tmp_path, "strategyQA_aug_context.jsonl", [{"title": "T", "contents": "C"}])
    [found] = find_sets(tmp_path)
    assert found.name == "strategyqa"
    assert found.questions[0].golds == ("no",)
    assert [each.text for each in found.passages] == ["C"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((), "none of the question sets"),
        (("squad",), "unknown set"),
        (("musique",), "musique.json"),
    ],
)
def test_missing_sets_are_refused(tmp_path, wanted, message):
    with pytest.raises(InputError, match=message):
        find_sets(tmp_path, wanted)


def test_a_row_of_something_else_is_refused_by_its_place(tmp_path):
    write(tmp_path, "hotpot.json", [HOTPOT, {"question": "Who?"}])
    with pytest.raises(InputError, match="line 2 is not a question of HotpotQA"):
        read_set("hotpotqa", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hotpotqa", "Ann did. So the answer is Ann Smith.", "Ann Smith"),
        ("hotpotqa", "the answer is A. the answer is B.", "A. the answer is B"),
        ("hotpotqa", "No cue at all.", ""),
        ("2wiki", "No cue at all.", "No cue at all."),
        ("strategyqa", "So the answer is Yes, it can.", "yes"),
        ("strategyqa", "So the answer is perhaps.", "no"),
        ("strategyqa", "Nothing.", ""),
    ],
)
def test_the_prediction_follows_the_cue(name, text, expected):
    assert predicted(name, text) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("The Beatles!", ["beatles"], Scores(1.0, 1.0)),
        ("Ann Smith", ["Ann", "Bob"], Scores(0.0, 2 / 3)),
        ("yes", ["yes it is"], Scores(0.0, 0.0)),  # yes and no count whole or not at all
        ("no", ["no"], Scores(1.0, 1.0)),
        ("", ["Ann"], Scores(0.0, 0.0)),
        ("a b b", ["b b c"], Scores(0.0, 4 / 5)),  # the article is dropped: b b against b b c
    ],
)
def test_exact_match_and_f1(prediction, golds, expected):
    found = score("hotpotqa", prediction, golds)
    assert found.exact == expected.exact
    assert found.f1 == pytest.approx(expected.f1)
    assert found.accuracy is None


def test_accuracy_is_for_yes_and_no():
    assert score("strategyqa", "yes", ["yes"]).accuracy == 1.0


def test_normal_form():
    assert normal("  The U.S.   of a KIND ") == "us of kind"
