"""KV cache reuse between the rounds of a session."""

from dataclasses import replace

import pytest
from rag_tiny import CORPUS, QUESTION, rag_engine

from graft.rag.corpus import Bm25Corpus, Hit, Passage
from graft.rag.document_cache import DocumentCache
from graft.rag.parts import PartReuse, reused
from graft.rag.reuse import Reuse
from graft.rag.session import Session
from graft.sampling import SamplingParams

SHORT = SamplingParams(max_tokens=36, temperature=0.8, seed=3)
APPROXIMATE = ("cics", "keep", "blend", "cics+all", "blend+all")


class Turning(Bm25Corpus):
    """Finds the same passages in another order every time."""

    def __init__(self) -> None:
        super().__init__([Passage(str(i), f"passage {i} on the water" * i) for i in range(2, 6)])
        self._searches = 0

    def search(self, query: str, count: int) -> list[Hit]:
        hits = [Hit(passage, 1.0) for passage in self.passages]
        self._searches += 1
        turn = self._searches % len(hits)
        return (hits[turn:] + hits[:turn])[:count]


@pytest.fixture(scope="module")
def engine():
    return rag_engine()


@pytest.fixture(autouse=True)
def _nothing_known(engine):
    engine.model.prefixes.clear()


def session(engine, reuse, corpus=None, **options):
    own = {"policy": "fl", "threshold": 8, "guided": False, "draft": "igpg"} | options
    return Session(engine, corpus or Turning(), reuse=reuse, **own)


def test_exact_gives_the_tokens_of_off_with_less_prefill(engine):
    off = session(engine, "off").ask(QUESTION, SHORT)
    exact = session(engine, "exact").ask(QUESTION, SHORT)
    assert exact.token_ids == off.token_ids
    assert len(off.rounds) > 3
    assert (off.totals.reused_tokens, off.made.approximate) == (0, False)
    assert (exact.made.approximate, exact.totals.approximate_tokens) == (False, 0)
    head = exact.totals.demonstration_tokens
    assert all(each.reused["demonstrations"] == head for each in exact.rounds)
    again = [each.reused.get("passage", 0) for each in exact.rounds]
    assert again[0] == 0
    assert max(again) > 0  # an order that was there before


def test_exact_gives_the_tokens_of_off_without_the_prefix_cache(engine):
    off = session(engine, "off").ask(QUESTION, SHORT)
    shared = DocumentCache(engine, Reuse("exact"))
    for _ in range(2):
        engine.model.prefixes.clear()
        answer = session(engine, shared).ask(QUESTION, SHORT)
        assert answer.token_ids == off.token_ids
    assert answer.rounds[0].reused["passage"] > 0
    assert shared.statistics().head.exact_hits > 0


@pytest.mark.parametrize("reuse", APPROXIMATE)
def test_approximate_answers_are_marked(engine, reuse):
    answer = session(engine, reuse).ask(QUESTION, SHORT)
    assert answer.made.approximate
    assert answer.made.reuse == reuse
    assert answer.totals.approximate_tokens > 0
    content = answer.as_dict()
    assert content["approximate"] is True
    approximate = [each for each in content["rounds"] if each["approximate_tokens"]]
    assert approximate
    assert all(each["approximate"] for each in approximate)
    for each in answer.rounds:  # approximate tokens are not counted as exact
        cached = sum(each.reused.values()) + each.stats.approximate_tokens
        assert cached < each.stats.prompt_tokens


def test_drafts_change_no_token_of_approximate_answers(engine):
    plain, drafted = (
        session(engine, "cics", draft=draft).ask(QUESTION, SHORT) for draft in ("plain", "auto")
    )
    assert plain.token_ids == drafted.token_ids


@pytest.mark.parametrize("scope", ["question", "all"])
def test_blending_with_share_1_is_exact(engine, scope):
    exact = session(engine, "exact").ask(QUESTION, SHORT)
    blended = session(engine, Reuse("blend", scope, 1.0)).ask(QUESTION, SHORT)
    assert blended.token_ids == exact.token_ids
    assert blended.made.approximate
    assert blended.totals.approximate_tokens == 0  # all were computed anew


def test_approximate_reuse_is_guided(engine):
    assert session(engine, "cics", guided=None).guided
    assert not session(engine, "exact", guided=None).guided


def test_demonstrations_are_prefilled_once_in_every_mode(engine):
    for reuse in ("demos", "exact", *APPROXIMATE):
        own = session(engine, reuse)
        first, second = own.ask(QUESTION, SHORT), own.ask(QUESTION, SHORT)
        assert first.totals.demonstration_seconds > 0
        assert second.totals.demonstration_seconds == 0
        for each in (*first.rounds, *second.rounds):
            assert each.reused["demonstrations"] == first.totals.demonstration_tokens
        counted = own.cache.statistics().head
        assert counted.computed_tokens < 2 * first.totals.demonstration_tokens


def test_approximate_rows_are_not_reused_by_the_next_question(engine):
    own = session(engine, "cics")
    first = own.ask(QUESTION, SHORT)
    own.corpus = Turning()
    engine.model.prefixes.clear()
    assert own.ask(QUESTION, SHORT).token_ids == first.token_ids
    assert not own.cache._questions


def test_scope_all_shares_passages(engine):
    own = session(engine, "cics+all")
    answers = [own.ask(QUESTION, SHORT)]
    own.corpus = Turning()
    answers.append(own.ask(QUESTION, SHORT))
    assert answers[0].token_ids == answers[1].token_ids
    approximate = [answer.rounds[0].stats.approximate_tokens for answer in answers]
    assert approximate[1] > approximate[0] == 0


def test_reordered_rounds_are_marked(engine):
    answer = session(engine, "exact+reorder").ask(QUESTION, SHORT)
    assert answer.made.reuse == "exact+reorder"
    assert not answer.made.approximate
    assert not answer.rounds[0].reordered
    assert any(each.reordered for each in answer.rounds)
    assert all(each["reordered"] in (True, False) for each in answer.as_dict()["rounds"])


def test_cancelled_stream_frees_its_passages(engine):
    own = session(engine, "cics")
    stream = own.stream(QUESTION, SHORT)
    for _ in zip(range(4), stream, strict=False):
        pass
    assert own.cache._questions
    stream.close()
    assert not own.cache._questions


def test_scoring_policies_run_with_approximate_reuse(engine):
    for policy in ("flare", "dragin"):
        answer = Session(engine, CORPUS, policy=policy, threshold=0.1, reuse="cics").ask(
            QUESTION, SHORT
        )
        assert answer.made.approximate


PARTS = [
    PartReuse("head", "demonstrations", 10),
    PartReuse("passage", "a", 5),
    PartReuse("passage", "b", 5),
    PartReuse("text", "", 2),
]


@pytest.mark.parametrize(
    ("known", "cached", "expected"),
    [
        ([0, 0, 0, 0], 0, {}),
        ([0, 0, 0, 0], 8, {"demonstrations": 8}),
        ([0, 0, 0, 0], 17, {"demonstrations": 10, "passage": 7}),
        ([10, 0, 0, 0], 10, {"demonstrations": 10}),
        ([10, 0, 5, 0], 15, {"demonstrations": 10, "passage": 5}),  # the first passage computed
        ([10, 0, 5, 0], 18, {"demonstrations": 10, "passage": 8}),  # partly in the prefix cache
        ([0, 5, 0, 0], 15, {"demonstrations": 10, "passage": 5}),
    ],
)
def test_reused_tokens_are_counted_by_part(known, cached, expected):
    parts = [replace(part, exact=exact) for part, exact in zip(PARTS, known, strict=True)]
    assert reused(parts, cached) == expected
