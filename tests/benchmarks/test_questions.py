"""Training questions: asked by the target itself, to translate, and nothing of the tests."""

import gzip
import json
import sys

from benchmarks.heads import questions

PAGES = """<page><title>Ada Lovelace</title><text>...</text></page>
<page><title>Talk: Engine</title><text>...</text></page><page><title>A &amp; B</title></page>"""
ANSWER = """Sure:
1. Who wrote the first program?
2) Where was Ada Lovelace born?
Not a question.
- "When did Ada Lovelace meet Charles Babbage?\""""


def written(tmp_path, monkeypatch, *arguments):
    out = tmp_path / "questions.jsonl.gz"
    command = ["questions", "--seed", "1", "--out", str(out), *map(str, arguments)]
    monkeypatch.setattr(sys, "argv", command)
    questions.main()
    with gzip.open(out, "rt", encoding="utf-8") as file:
        return [json.loads(line)["messages"][0]["content"] for line in file]


def conversation(path, question, answer):
    roles = ("user", question), ("assistant", answer)
    messages = [{"role": role, "content": content} for role, content in roles]
    path.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    return path


def test_the_target_s_own_questions_are_asked_but_for_those_of_the_tests(tmp_path, monkeypatch):
    answers = conversation(tmp_path / "answers.jsonl", "Write ten short quiz questions", ANSWER)
    tests = conversation(tmp_path / "tests.jsonl", "where was ADA Lovelace born", "London")
    found = written(tmp_path, monkeypatch, "--asked", answers, "--exclude", tests)
    assert sorted(found) == [
        "When did Ada Lovelace meet Charles Babbage?",
        "Who wrote the first program?",
    ]


def test_answers_to_other_prompts_are_not_asked(tmp_path, monkeypatch):
    answers = conversation(tmp_path / "answers.jsonl", "Who are you?", "Who wants to know that?")
    assert written(tmp_path, monkeypatch, "--asked", answers) == []


def test_titles_and_sentences_become_questions(tmp_path, monkeypatch):
    wiki, german = tmp_path / "wiki.gz", tmp_path / "german.txt"
    wiki.write_bytes(gzip.compress(PAGES.encode()))
    german.write_text("Das ist ein Satz.\nUnd noch einer.\n", encoding="utf-8")
    given = ("--wiki", wiki, "--foreign", f"German={german}", "--count", "40")
    found = written(tmp_path, monkeypatch, *given, "--shares", "0", "0", "0", "1", "1")
    translated = [each for each in found if "Satz" in each or "einer" in each]
    assert len(found) == 40
    assert len(translated) == 2
    assert all(
        "Ada Lovelace" in each or "A & B" in each for each in found if each not in translated
    )
    assert not any("Talk" in each for each in found)
