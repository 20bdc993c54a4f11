"""The prompt of a round and its parts, for chat and base models."""

import pytest
from rag_tiny import CORPUS, rag_engine

from graft.errors import InputError
from graft.rag.corpus import Hit
from graft.rag.families import FAMILIES, find_family
from graft.rag.parts import PartReuse
from graft.rag.prompt import Prompter, quotable

HITS = [Hit(CORPUS.passages[1], 3.0), Hit(CORPUS.passages[0], 2.0)]


@pytest.fixture(scope="module")
def engine():
    return rag_engine()


def decoded(engine, tokens):
    return engine.loaded.tokenizer.decode(tokens)


def test_plain_prompt_is_one_text(engine):
    prompter = Prompter(engine, find_family("2wiki"), "plain", guided=True)
    parts = prompter.parts("Who?", HITS, ["9", "1"], engine.encoder.text(" It was"))
    text = decoded(engine, [token for part in parts for token in part.tokens])
    assert text.startswith(
        "Question: In which city was the director of the film The Third Man born"
    )
    assert text.endswith(
        "Context:\n[2] river: a river and a boat on the water\n"
        "[1] apple: the apple and the pear in the water\n"
        "[2], [1] are related documents.\n[9] are unrelated documents.\n"
        "The relevance scores are: [2] 2, [1] 1.\n"
        "Answer the question in the same format as above.\n"
        "Question: Who?\nAnswer: It was"
    )


def test_first_round_lists_no_unrelated_passages(engine):
    parts = Prompter(engine, find_family("2wiki"), "plain").parts("Who?", HITS, [], [])
    [guide] = [part for part in parts if part.kind == "guide"]
    assert "unrelated" not in decoded(engine, guide.tokens)


def test_only_the_last_unrelated_passages_are_listed(engine):
    seen = [f"d{n}" for n in range(30)]
    parts = Prompter(engine, find_family("2wiki"), "plain").parts("Who?", HITS, seen, [])
    [guide] = [decoded(engine, part.tokens) for part in parts if part.kind == "guide"]
    assert "[d20]" in guide
    assert "[d19]" not in guide


def test_unguided_prompt_has_the_request_only(engine):
    prompter = Prompter(engine, find_family("2wiki"), "plain", guided=False)
    [guide] = [part for part in prompter.parts("Who?", HITS, ["9"], []) if part.kind == "guide"]
    assert decoded(engine, guide.tokens) == "Answer the question in the same format as above.\n"


def test_without_passages_there_is_neither_context_nor_guide(engine):
    parts = Prompter(engine, find_family("hotpotqa"), "plain").parts("Who?", [], ["9"], [])
    assert [part.kind for part in parts] == ["head", "question", "frame"]
    assert decoded(engine, parts[1].tokens).startswith(find_family("hotpotqa").instruction)


def test_a_chat_model_gets_demonstrations_as_turns(engine):
    prompter = Prompter(engine, find_family("general"))
    assert prompter.style == "chat"
    parts = prompter.parts("Who?", HITS, [], engine.encoder.text("It was"))
    text = decoded(engine, [token for part in parts for token in part.tokens])
    assert text.count("<|im_start|>assistant") == 4
    assert text.endswith("Question: Who?<|im_end|>\n<|im_start|>assistant\nIt was")


def test_prompts_with_and_without_passages_begin_with_the_same_tokens(engine):
    prompter = Prompter(engine, find_family("general"))
    for hits in (HITS, []):
        tokens = [t for part in prompter.parts("Who?", hits, [], []) for t in part.tokens]
        assert tokens[: len(prompter.head.tokens)] == prompter.head.tokens


def test_a_passage_is_the_same_tokens_in_every_round(engine):
    prompter = Prompter(engine, find_family("general"))
    one = {part.id: part.tokens for part in prompter.parts("Who?", HITS, [], [])}
    other = {part.id: part.tokens for part in prompter.parts("Else?", HITS[::-1], ["9"], [5])}
    assert one["1"] == other["1"]
    assert one["2"] == other["2"]


def test_drafts_use_passages_question_and_text_without_demonstrations(engine):
    prompter = Prompter(engine, find_family("general"))
    parts = prompter.parts("Who?", HITS, [], engine.encoder.text("It was"))
    tokens = [token for part in parts for token in part.tokens]
    sizes = [PartReuse(part.kind, part.id, len(part.tokens)) for part in parts]
    copied = [decoded(engine, tokens[a:b]) for a, b in quotable(sizes)]
    assert copied[0].startswith("[2] river")
    assert copied[-2].endswith("Who?")
    assert copied[-1] == "It was"
    assert len(copied) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_demonstrations_of_every_family_end_with_an_answer(name):
    family = find_family(name)
    assert all("So the answer is" in each.answer for each in family.demonstrations)
    assert family.max_tokens > 0


def test_families_have_the_published_numbers_of_demonstrations():
    counts = {name: len(find_family(name).demonstrations) for name in FAMILIES}
    assert (counts["2wiki"], counts["hotpotqa"], counts["strategyqa"]) == (6, 8, 6)


def test_user_family(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'instruction = "Be brief."\n[[demonstrations]]\nquestion = "Q?"\nanswer = "A."\n'
    )
    family = find_family(str(own))
    assert (family.name, family.instruction, len(family.demonstrations)) == ("own", "Be brief.", 1)


@pytest.mark.parametrize(
    "text", ["not toml", 'other = "x"', "demonstrations = [1]", "max_tokens = 0", "instruction = 3"]
)
def test_wrong_family_file_is_refused(tmp_path, text):
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(InputError, match="own.toml"):
        find_family(str(own))


@pytest.mark.parametrize("name", ["nosuch", "missing.toml"])
def test_an_unknown_family_is_refused(name):
    with pytest.raises(InputError, match=name):
        find_family(name)
