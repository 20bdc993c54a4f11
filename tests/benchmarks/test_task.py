import pytest

from benchmarks import suites
from benchmarks.suites.task import (
    Prompt,
    limited,
    numbers_by_group,
    read_suite,
    select,
    suite_names,
)
from graft.errors import InputError

PROMPTS = [Prompt(n, "rag" if n > 10 else "qa", f"question {n}") for n in range(1, 21)]


def numbers(chosen):
    return [prompt.number for prompt in chosen]


def test_odd_numbers_are_reported_even_ones_tuned_on():
    assert all(n % 2 for n in numbers(select(PROMPTS, limit=None, split="report")))
    assert not any(n % 2 for n in numbers(select(PROMPTS, limit=None, split="tune")))
    assert len(select(PROMPTS, limit=None, split="all")) == 20


def test_a_limit_spreads_over_each_category_and_categories_take_turns():
    assert numbers(select(PROMPTS, limit=2, split="all")) == [1, 11, 6, 16]
    assert numbers(select(PROMPTS, limit=3, split="report")) == [1, 11, 3, 13, 7, 17]


def test_the_same_choice_every_time():
    assert select(PROMPTS, limit=3, split="all") == select(PROMPTS, limit=3, split="all")


def test_preferred_prompts_come_first():
    assert numbers(limited(PROMPTS, 2, {4, 9, 10, 12})) == [4, 12, 9, 11]
    assert numbers(limited(PROMPTS[:3], None, {3})) == [3, 1, 2]


def test_a_document_does_not_change_the_digest_of_a_prompt():
    assert repr(Prompt(1, "qa", "a text", "text")) == repr(Prompt(1, "qa", "a text"))


def test_categories_can_be_chosen():
    assert numbers(select(PROMPTS, limit=1, split="all", categories=("rag",))) == [11]


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ({"split": "half"}, "unknown split 'half'; choose one of report, tune, all"),
        ({"categories": ("law",)}, "unknown category 'law'; choose from qa, rag"),
    ],
)
def test_unknown_choices_are_named(choice, line):
    with pytest.raises(InputError, match=line):
        select(PROMPTS, **{"limit": None, "split": "all", **choice})


def test_nothing_left_is_an_error():
    with pytest.raises(InputError, match="no prompts are left"):
        select([Prompt(2, "qa", "even")], limit=None, split="report")


def test_numbers_keep_a_group_in_one_half():
    assert numbers_by_group("aabcabd") == [1, 3, 2, 5, 7, 4, 6]
    assert numbers_by_group([]) == []


def test_a_file_in_the_folder_is_a_suite(tmp_path, monkeypatch):
    (tmp_path / "haiku.py").write_text(
        "from benchmarks.suites.task import Prompt\n\n\n"
        "def read(data):\n    return [Prompt(1, 'spring', 'An old pond')]\n"
    )
    monkeypatch.setattr(suites, "__path__", [*suites.__path__, str(tmp_path)])
    assert {"haiku", "spec_bench", "squad"} <= set(suite_names())
    assert read_suite("haiku", None) == [Prompt(1, "spring", "An old pond")]


def test_an_unknown_suite_is_refused():
    with pytest.raises(InputError, match="unknown suite 'spek'; choose one of agent, code_edit, "):
        read_suite("spek", None)
