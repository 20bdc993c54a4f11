"""The trees SGLang's worker gets, without SGLang: `make test-sglang` drives its own code."""

import subprocess
import sys

import numpy as np

from graft.integrations.sglang_corpora import Corpora
from graft.integrations.sglang_fields import Texts
from graft.integrations.sglang_trees import FILLER, Running, Trees
from graft.match.pool import Pools

DOCUMENT = list(range(10, 60))
NODES = 8
NOTHING = [[FILLER]] * (NODES - 1)


def draft(trees, *requests):
    """Of each request the tokens that lead to every node but the root."""
    tokens, mask = trees.draft(requests)
    count = len(requests)
    rows = zip(tokens.reshape(count, NODES), mask.reshape(count, NODES, NODES), strict=True)
    return [paths(*each) for each in rows]


def paths(tokens, mask):
    return [tokens[np.flatnonzero(row)][1:].tolist() for row in mask[1:]]


def test_a_copy_is_among_the_paths():
    tokens, mask = Trees(NODES).draft([Running("a", [*DOCUMENT, 1], [10, 11, 12])])
    assert tokens[0] == 12
    assert [13, 14, 15, 16] in paths(tokens, mask.reshape(NODES, NODES))


def test_every_tree_is_padded_with_children_of_the_root():
    tokens, mask = Trees(NODES).draft([Running("a", [5, 6, 7], [8])])
    assert tokens.dtype == np.int64
    assert mask.dtype == bool
    assert paths(tokens, mask.reshape(NODES, NODES)) == NOTHING


def test_chains_have_the_best_branch_and_padding_after_it():
    """Their attention may be causal: every node sees all before it."""
    request = Running("a", [1, 2, 3, 4, 9, 1, 2, 5, 6, 8], [1, 2])
    branches = draft(Trees(NODES), request)[0]
    assert [3] in branches
    assert [5] in branches
    chained, mask = Trees(NODES, chains=True).draft([request])
    assert (mask.reshape(NODES, NODES) == np.tri(NODES)).all()
    assert chained[:3].tolist() in ([2, 3, 4], [2, 5, 6])
    tokens, _ = Trees(NODES, chains=True).draft([Running("b", [5, 6, 7], [8])])
    assert tokens.tolist() == [8, *[FILLER] * (NODES - 1)]


def test_requests_draft_only_from_their_own_texts():
    known = Running("a", [1], [10, 11], Texts(documents=[DOCUMENT]))
    predicted = Running("b", [1], [10, 11], Texts(prediction=DOCUMENT))
    copied, guessed, without = draft(Trees(NODES), known, predicted, Running("c", [1], [10, 11]))
    assert [12, 13] in copied
    assert [12, 13] in guessed
    assert without == NOTHING


def test_a_request_continues_in_any_row_and_restarts_once_dropped():
    trees = Trees(NODES)
    draft(trees, Running("a", DOCUMENT, [10]), Running("b", DOCUMENT, [30]))
    second, first = draft(
        trees, Running("b", DOCUMENT, [30, 31]), Running("a", DOCUMENT, [10, 11, 12])
    )
    assert [32, 33] in second
    assert [13, 14] in first
    trees.update_async()
    trees.keep(["b"])
    assert "a" not in trees
    [again] = draft(trees, Running("a", DOCUMENT, [10, 11, 12, 20]))
    assert [21, 22] in again


def test_texts_are_forgotten_with_their_request():
    trees = Trees(NODES)
    draft(trees, Running("a", [1], [10, 11], Texts(documents=[DOCUMENT])))
    trees.drop("a")
    trees.drop("never seen")
    assert draft(trees, Running("a", [1], [10, 11])) == [NOTHING]


def test_a_pool_drafts_from_finished_answers_of_the_same_salt():
    trees = Trees(NODES, Pools())
    draft(trees, Running("a", [1, 2, 3], [40]))
    draft(trees, Running("a", [1, 2, 3], [40, *DOCUMENT]))
    trees.keep([])
    later = [Running("b", [5], [11, 12, 13]), Running("c", [5], [11, 12, 13], salt="other")]
    same, other = draft(trees, *later)
    assert [14, 15, 16] in same
    assert other == NOTHING


def test_answers_reach_the_pool_in_the_order_of_their_requests():
    """Ranks of a tensor-parallel server must have the same pool."""
    pools = Pools()
    trees, names = Trees(NODES, pools), [f"request {i}" for i in range(20)]
    draft(trees, *(Running(name, [7], [40 + i, 41 + i]) for i, name in enumerate(names)))
    trees.keep([])
    assert [text.tolist() for text in pools.of("").texts()] == [
        [7, 40 + i, 41 + i] for i in range(20)
    ]


def corpora(**named):
    made = Corpora(vocabulary=1000)
    for name, text in named.items():
        made.build(name, [text], max_tokens=500)
        made.commit(name)
    return made


def test_every_request_of_a_batch_gets_a_tree_of_its_own_from_a_corpus():
    trees = Trees(NODES, corpora=corpora(a=DOCUMENT))
    batch = [Running(name, [1], [10 + i, 11 + i, 12 + i]) for i, name in enumerate("abcd")]
    for i, found in enumerate(draft(trees, *batch)):
        assert list(range(13 + i, 18 + i)) in found


def test_a_request_may_name_its_corpora():
    other = list(range(200, 250))
    trees = Trees(NODES, corpora=corpora(a=DOCUMENT, b=[10, 11, 12, *other]))
    chosen = {"all": None, "first": ["a"], "second": ["b"], "none": []}
    found = draft(
        trees,
        *(Running(name, [1], [10, 11, 12], Texts(corpora=each)) for name, each in chosen.items()),
    )
    begins = [([13] in each, [200] in each) for each in found]
    assert begins == [(True, True), (True, False), (False, True), (False, False)]


def test_a_corpus_is_searched_only_without_a_confident_copy_at_hand():
    shared = corpora(a=[*DOCUMENT[:20], 99, 99, 99])
    running = Running("a", [*DOCUMENT, 1], DOCUMENT[:20])
    [at_hand] = draft(Trees(NODES, corpora=shared), running)
    assert [30, 31, 32] in at_hand
    assert [99] not in at_hand
    [uncertain] = draft(Trees(NODES, corpora=shared), Running("a", [1], DOCUMENT[:20]))
    assert [99] in uncertain


def test_corpora_and_pool_are_used_together():
    trees = Trees(NODES, Pools(), corpora(a=[70, 71, 72, 73, 74]))
    draft(trees, Running("a", [1], [40]))
    draft(trees, Running("a", [1], [40, *DOCUMENT]))
    trees.drop("a")
    pooled, stored = draft(trees, Running("b", [5], [11, 12]), Running("c", [5], [70, 71]))
    assert [13, 14] in pooled
    assert [72, 73] in stored


def test_a_request_whose_first_token_is_in_flight_expects_nothing():
    trees = Trees(NODES)
    asks = Running("a", [*DOCUMENT, 1], [])
    assert trees.expected([asks], skipped=1)(3) == 0
    [copied] = draft(trees, Running("a", [*DOCUMENT, 1], [], in_flight=[10]))
    assert [11, 12] in copied
    known = Running("a", [*DOCUMENT, 1], [10], in_flight=[11])
    assert 0.5 < trees.expected([known])(3) <= 3
    assert trees.expected([known])(NODES) == trees.expected([known])(NODES - 1)
    assert trees.expected([known], skipped=1)(3) < trees.expected([known])(3)


COMPILED_LATE = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from graft.integrations.sglang_corpora import Corpora
from graft.integrations.sglang_fields import Texts
from graft.integrations.sglang_trees import Running, Trees
from graft.match.pool import Pools

def compiled():
    modules = [each for name, each in list(sys.modules.items()) if name.startswith("graft")]
    kernels = {each for module in modules for each in vars(module).values()
               if isinstance(each, Dispatcher)}
    return {f"{each.__module__}.{each.__name__}": len(each.overloads) for each in kernels}

for vocabulary, pools, chains in ((300, None, True), (100000, Pools(), False)):
    corpora, random = Corpora(vocabulary), np.random.default_rng(0)
    trees = Trees(16, pools, corpora, chains=chains)
    trees.warm_up()
    before = compiled()
    corpora.build("a", [random.integers(0, 9, 300).tolist()], 1000)
    corpora.commit("a")
    for turn in range(30):
        text, answer = random.integers(0, 7, 60).tolist(), []
        texts = Texts(documents=[text[5:40]], prediction=text[3:30])
        for _ in range(6):
            running = [
                Running(f"{turn} {i}", text[i:], answer, texts if i else Texts()) for i in range(3)
            ]
            trees.expected(running)
            trees.draft(running, 4)
            trees.draft(running)
            answer = answer + random.integers(0, 7, 3).tolist()
        trees.update_async()
        trees.keep(())
    late = {name: count for name, count in compiled().items() if count != before.get(name, 0)}
    assert before and not late, late
"""


def test_no_request_waits_for_a_kernel_that_is_compiled():
    subprocess.run([sys.executable, "-c", COMPILED_LATE], check=True)
