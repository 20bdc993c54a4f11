from itertools import pairwise

import pytest

from benchmarks.decode.encode import encode
from benchmarks.suites.task import Prompt
from graft.errors import InputError

LENGTHS = [200, 400, 600, 800, 1000, 1200]  # of documents, about, in tokens


def long_prompt(number, length):
    document = f"No {number}: " + "x." * (length // 2)
    return Prompt(number, "qa", f"{document}\nWhy {number}?", document)


PROMPTS = [long_prompt(number, length) for number, length in enumerate(LENGTHS, 1)]


@pytest.fixture
def encoded(tiny_folder, settings):
    def make(prompts, **changes):
        return encode(tiny_folder, prompts, settings(suite="leval", **changes))

    return make


def numbers(cell):
    return [each.prompt.number for each in cell]


def test_a_context_has_the_prompts_that_reach_it(encoded):
    work = encoded(PROMPTS, contexts=(1000, 512))
    assert {context: numbers(cell) for context, cell in work.prompts.items()} == {
        512: [5, 6, 3, 4],
        1000: [5, 6],
    }
    for context, cell in work.prompts.items():
        assert all(0.9 * context <= len(each.token_ids) <= context for each in cell)
    assert work.notes == [
        "context 512: 2 of 6 prompts are left out: they cannot have that length",
        "context 1000: 4 of 6 prompts are left out: they cannot have that length",
    ]


def test_a_limit_keeps_the_prompts_of_the_longest_context_at_shorter_ones(encoded):
    work = encoded(PROMPTS, contexts=(256, 512, 1000), limit=3)
    chosen = [set(numbers(cell)) for cell in work.prompts.values()]
    assert [len(cell) for cell in chosen] == [3, 3, 2]
    assert chosen[2] == {5, 6}
    assert all(longer <= shorter for shorter, longer in pairwise(chosen))


def test_a_context_may_end_where_the_answer_begins(encoded):
    prompts = [long_prompt(1, 3000)]
    [cell] = encoded(prompts, contexts=(2048,), max_tokens=100).prompts.values()
    assert 2048 - 110 < len(cell[0].token_ids) <= 2048 - 100
    with pytest.raises(InputError, match="--contexts 2048 leaves no tokens for an output"):
        encoded(prompts, contexts=(2048,), max_tokens=300)


def test_a_prompt_without_a_document_is_taken_where_it_fits(encoded):
    alone = Prompt(9, "qa", "y." * 250)
    assert numbers(encoded([*PROMPTS, alone], contexts=(512,)).prompts[512]) == [3, 4, 5, 6, 9]
    assert numbers(encoded([*PROMPTS, alone], contexts=(400,)).prompts[400]) == [2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="--contexts cuts documents, and the prompts of leval"):
        encoded([alone], contexts=(512,))


def test_a_context_that_no_prompt_reaches_is_an_error(encoded):
    with pytest.raises(
        InputError, match=r"no prompt reaches --contexts 1900; the longest has 12\d\d"
    ):
        encoded(PROMPTS, contexts=(512, 1900))


def test_without_a_context_only_too_long_prompts_are_cut(encoded):
    work = encoded([*PROMPTS, long_prompt(7, 3000), Prompt(8, "qa", "y." * 1500)])
    assert numbers(work.prompts[0]) == [1, 2, 3, 4, 5, 6, 7]
    assert 2048 - 8 - 10 < len(work.prompts[0][-1].token_ids) <= 2048 - 8
    assert work.max_model_len == 2048
    assert work.notes == [
        "1 prompts are cut to the model's 2048 tokens",
        "1 prompts are left out: too long for the model",
    ]
    with pytest.raises(InputError, match="no prompt fits the model's 2048 tokens"):
        encoded(PROMPTS, max_tokens=2048)
