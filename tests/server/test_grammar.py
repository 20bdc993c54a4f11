"""Answers of a given form, drafted and plain."""

import json
import re

import pytest
from late import Late
from tiny import END, VOCABULARY, tiny_engine
from watched import Adversary, Oracle

from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.errors import InputError
from graft.match.pool import Pools
from graft.sampling import SamplingParams
from graft.server.grammar import (
    ANY_OBJECT,
    Grammars,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)
from graft.tree.draft_tree import from_paths

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"enum": ["the", "and"]}, "maxItems": 3},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
PATTERN = "[0-9]{3}-(and|the){2,9}"
TEXTS = ["123-andandand", '{"a": 1, "b": ["the", "and"]}']


@pytest.fixture(scope="module", params=[lambda forward: forward, Late], ids=["at once", "late"])
def engine(request):
    return tiny_engine(wrap=request.param)


def answers(engine, grammar, draft, **options):
    request = Request(
        "the end 123-and",
        SamplingParams(**{"max_tokens": 60, "temperature": 1, "seed": 4, "n": 2, **options}),
        draft,
        TEXTS,
    )
    constrain = Grammars(engine).constrain(grammar)
    return engine.generate(PreparedRequest(request, constrain=constrain)).choices


@pytest.mark.parametrize("draft", ["auto", "copy", "pld"])
@pytest.mark.parametrize(
    ("grammar", "fits"),
    [
        (regex_grammar(PATTERN), lambda text: re.fullmatch(PATTERN, text)),
        (json_grammar(SCHEMA), lambda text: set(json.loads(text)) == {"a", "b"}),
        (json_grammar(json.dumps(SCHEMA)), lambda text: json.loads(text)["b"] is not None),
        (json_grammar(ANY_OBJECT), lambda text: isinstance(json.loads(text), dict)),
        (choice_grammar(["yes", 'n"o']), lambda text: text in ("yes", 'n"o')),
        (lark_grammar('start: "a" "b"+ "c"'), lambda text: re.fullmatch("ab+c", text)),
    ],
    ids=["regex", "schema", "schema as text", "object", "choice", "lark"],
)
def test_drafted_answers_match_the_grammar_and_equal_plain_ones(engine, grammar, fits, draft):
    drafted, plain = (answers(engine, grammar, each) for each in (draft, "plain"))
    assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
    for each in drafted:
        assert each.finish_reason == "length" or fits(each.text)
    assert any(each.finish_reason == "stop" for each in drafted)


def test_forbidden_draft_tokens_are_pruned(engine):
    grammar = Grammars(engine).constrain(regex_grammar("the(re|n)x*"))(3)
    tokens = {text: engine.encoder.text(text) for text in ("the", "re", "n", "x", "q")}
    [the], [re_], [n], [x], [q] = tokens.values()
    tree = from_paths(the, [[re_, x, q], [n, x], [q, x]])
    kept = grammar.prune([5, 6, 7, the], tree)
    assert sorted(map(tuple, kept.paths())) == [(), (n,), (n, x), (re_,), (re_, x)]


def test_an_allowed_tree_is_not_changed(engine):
    grammar = Grammars(engine).constrain(regex_grammar("(the|x)*"))(0)
    [the], [x] = (engine.encoder.text(text) for text in ("the", "x"))
    tree = from_paths(the, [[the, x], [x]])
    assert grammar.prune([the], tree) is tree


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex_grammar("[a"),
        lambda: json_grammar({"type": "nothing"}),
        lambda: json_grammar("{"),
        lambda: json_grammar("3"),
        lambda: lark_grammar("start: unknown"),
        lambda: choice_grammar([""]),
    ],
)
def test_invalid_grammars_are_errors_of_one_line(engine, make):
    with pytest.raises(InputError) as refused:
        Grammars(engine).constrain(make())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("draft", ["oracle", "adversary"])
def test_a_drafted_end_token_does_not_end_the_grammar_early(draft):
    drafters = {"oracle": Oracle(VOCABULARY), "adversary": Adversary(VOCABULARY)}
    engine = tiny_engine(drafters=drafters)
    constrain = Grammars(engine).constrain(choice_grammar(["the and", "the end"]))
    prompt = engine.encoder.prompt("the end 123-and").tokens
    for seed in range(5):
        params = SamplingParams(temperature=1, seed=seed)
        requests = [
            PreparedRequest(Request(prompt, params, each), constrain=constrain)
            for each in ("plain", draft)
        ]
        plain = engine.generate(requests[0])
        assert plain.token_ids[-1] == END
        drafters[draft].answers[tuple(prompt)] = plain.token_ids
        assert engine.generate(requests[1]).token_ids == plain.token_ids


def test_answers_of_a_pool_do_not_end_the_grammar_early():
    engine = tiny_engine(pools=Pools())
    found = [answers(engine, json_grammar(SCHEMA), "auto") for _ in range(3)]
    plain = answers(engine, json_grammar(SCHEMA), "plain")
    assert all([each.text for each in got] == [each.text for each in plain] for got in found)
    assert sum(each.stats.accepted_by_source["pool"] for each in found[2]) > 5
    assert END not in [token for text in engine_texts(engine) for token in text.tolist()]


def engine_texts(engine):
    return engine.drafters.resources.pools.of("").texts()
