"""Passages of another document: none of the prompt's own, and the same question."""

from dataclasses import replace

import pytest
from tiny import tiny_engine
from tiny_words import byte_tokenizer, made_up_text

from benchmarks.decode.cut import Cutter
from benchmarks.decode.encode import Encoded, Workload
from benchmarks.decode.graft_variants import SuiteEngine, graft_variant, preset_of
from benchmarks.decode.unrelated import UnrelatedPassages
from benchmarks.suites.task import Planted, Prompt
from graft.draft.short_context.retrieved import Retrieval
from graft.errors import InputError

NAMES = ("anna", "boris", "clara")
QUESTION = "\n\nQuestion: who objected in {name}'s meeting?"


def document(name):
    """Every paragraph says whose it is."""
    return "\n\n".join(f"{name} wrote: {made_up_text(2, seed=i)}" for i in range(60))


def prompt(number, name):
    text, plant = document(name), Planted(0.5, f"{name} has hidden the key.")
    content = f"Answer from the minutes.\n\n{text}{QUESTION.format(name=number)}"
    return Prompt(number, "qa", content, text, planted=(plant,))


@pytest.fixture(scope="module")
def workload():
    """Two prompts of the first document, one of each other."""
    cutter, cell = Cutter(byte_tokenizer()), []
    for number, name in enumerate((NAMES[0], *NAMES), 1):
        made = prompt(number, name)
        cell.append(Encoded(made, cutter.fit(made, 3000)))
    return Workload({0: cell}, [], 4096, [], cutter)


@pytest.mark.parametrize(
    ("place", "other"), [(0, "boris"), (1, "boris"), (2, "clara"), (3, "anna")]
)
def test_no_passage_is_of_the_prompts_own_document(workload, place, other):
    cell, tokenizer = workload.prompts[0], byte_tokenizer()
    shorten = Retrieval(budget=800).with_tokenizer(tokenizer)
    tokens = cell[place].token_ids
    own = tokenizer.decode(shorten(tokens, [(0, len(tokens))]))
    short = UnrelatedPassages(shorten, workload)(tokens, [(0, len(tokens))], None)
    text, mine = tokenizer.decode(short), (NAMES[0], *NAMES)[place]
    assert f"{mine} wrote" in own
    assert f"{other} wrote" in text
    assert not any(f"{name} wrote" in text for name in NAMES if name != other)
    assert "hidden" not in text
    assert len(short) <= 800
    question = QUESTION.format(name=place + 1)
    assert text.endswith(question)
    tail = len(tokenizer.encode(question)) - 2  # the seam may be tokenized otherwise
    assert short[-tail:] == tokens[-tail:]


def test_prompts_of_one_document_have_no_other(workload):
    cell = {0: workload.prompts[0][:2]}
    with pytest.raises(InputError, match="at least two documents"):
        UnrelatedPassages(lambda *_: None, replace(workload, prompts=cell))


def test_a_run_drafts_from_the_other_document(workload):
    """The engine of a run makes the drafter; its text is plain decoding's."""
    cell = workload.prompts[0]
    tokens = [[5 + token % 90 for token in each.token_ids[-1100:]] for each in cell]
    cells = [Encoded(each.prompt, ids) for each, ids in zip(cell, tokens, strict=True)]
    seen = []

    def shorten(tokens, *_):
        seen.append(list(tokens))
        return [5 + token % 90 for token in tokens[-100:]] or None

    engine = tiny_engine(shorten=shorten)
    backend = SuiteEngine(engine, workload=replace(workload, prompts={0: cells}))
    given = {"prompts": [tokens[2]], "max_tokens": 12, "end_tokens": [], "temperature": 0.0}
    plain, drafted = (
        backend.ask({**given, "seeds": [1], "method": method})
        for method in ("plain", "rapid-unrelated")
    )
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["drafted"] > 0
    assert "clara wrote" in byte_tokenizer().decode(seen[-1])


def test_the_variant_takes_every_verifier():
    found = graft_variant("rapid-unrelated@rapid:20")
    assert (found.process, found.exactness) == ("graft@rapid:20", "none")
    assert preset_of(found.method) == "rapid"
    with pytest.raises(InputError, match="'copy' does not retrieve passages; take rapid"):
        graft_variant("copy-unrelated")
