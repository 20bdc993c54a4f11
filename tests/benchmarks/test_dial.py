"""Dialled drafters: plain decoding's text, and an acceptance rate that is the dial's."""

from dataclasses import replace

import numpy as np
import pytest
from daily import daily
from short_prompts import ends_only
from tiny import tiny_draft_model, tiny_engine, tiny_network
from tiny_heads import tiny_head

from benchmarks.decode.dial import Dialled, answer_key, deepest_path, dial
from benchmarks.decode.graft_variants import SuiteEngine, graft_variant, preset_of
from graft.draft.drafter import Budget, DraftContext, NoDraft
from graft.draft.models.chains import Chains
from graft.models.language_model import TargetStep
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, from_paths

PROMPTS = [[3 + (7 * i + 5 * n * n) % 120 for n in range(400)] for i in range(2)]
TOKENS = 160


@pytest.fixture(scope="module")
def suite_engine():
    network = tiny_network()
    engine = tiny_engine(
        network,
        draft_model=tiny_draft_model(),
        heads=[tiny_head("eagle3", network)],
        shorten=ends_only,
        chains=Chains(gamma=3),
    )
    return SuiteEngine(engine)


def ask(engine, method, temperature=0.0, **more):
    given = {"prompts": PROMPTS, "max_tokens": TOKENS, "end_tokens": [], "seeds": [7, 9]}
    return engine.ask(given | {"method": method, "temperature": temperature} | more)


@pytest.mark.parametrize(
    ("preset", "rate", "depth", "temperature"),
    daily(
        [
            ("sd", 0.3, 3, 0.0),
            ("sd", 0.8, 3, 1.0),
            ("magicdec", 0.6, 3, 0.0),
            ("eagle3", 0.8, 8, 0.0),
            ("casd", 0.5, 8, 0.0),
        ],
        ("sd", 0.8, 3, 1.0), ("eagle3", 0.8, 8, 0.0),
    ),
)  # fmt: skip
def test_text_is_plain_decodings_and_the_rate_is_the_dials(
    suite_engine, preset, rate, depth, temperature
):
    plain = ask(suite_engine, "plain", temperature)["token_ids"]
    found = ask(suite_engine, f"{preset}@{rate}", temperature)
    assert found["token_ids"] == plain
    accepted = [found["accepted_by_position"].get(str(n), 0) for n in range(1, depth + 1)]
    tried = found["steps"] + sum(accepted[:-1])
    error = (rate * (1 - rate) / tried) ** 0.5
    assert sum(accepted) / tried == pytest.approx(rate, abs=3 * error)


@pytest.mark.parametrize("preset", ["sd", "rapid", "triforce"])
def test_all_drafts_are_right_or_all_wrong(suite_engine, preset):
    long = {"prompts": [3 * prompt for prompt in PROMPTS], "max_tokens": 40}
    right, wrong = (ask(suite_engine, f"{preset}@{rate}", **long) for rate in (1, 0))
    assert right["token_ids"] == wrong["token_ids"]
    assert sum(right["accepted_by_source"].values()) == right["drafted"] > 30
    assert wrong["accepted_by_source"] == {}
    assert wrong["drafted"] > right["drafted"]


def test_dialled_drafter_makes_the_forwards_of_its_preset(suite_engine):
    model = suite_engine.engine.drafters.resources.model.model
    prefill = set()
    for name in ("sd", "sd@0", "sd@1"):
        before = model.steps
        found = ask(suite_engine, name, max_tokens=40, prompts=PROMPTS[:1], seeds=[7])
        prefill.add(model.steps - before - 3 * found["steps"])
    assert len(prefill) == 1


def test_copies_beside_a_dialled_draft_stay_real(suite_engine):
    found = ask(suite_engine, "sd+copy@0.5")
    assert found["token_ids"] == ask(suite_engine, "plain")["token_ids"]
    assert {"model", "output"} & found["drafted_by_source"].keys()


def test_answers_are_generated_again_only_where_more_tokens_are_needed(suite_engine, monkeypatch):
    methods, generate = [], suite_engine._batch
    monkeypatch.setattr(
        suite_engine, "_batch", lambda each: methods.append(each["method"]) or generate(each)
    )
    for tokens in (20, 20, 30):
        ask(suite_engine, "sd@0.5", max_tokens=tokens, seeds=[1, 2])
    assert methods == ["plain", "sd@0.5", "sd@0.5", "plain", "sd@0.5"]


def test_right_token_of_a_sibling_is_swapped_and_a_wrong_level_has_none():
    tree = from_paths(9, [[1, 4, 6], [2, 5], [3]])
    path = deepest_path(tree)
    assert [tree.tokens[node] for node in path] == [1, 4, 6]
    right = dial(tree, path, [2, 7, 8], right=2)
    assert right.paths() == [[], [2], [1], [3], [2, 7], [1, 5], [2, 7, 6]]
    wrong = dial(tree, path, [2, 7, 8], right=0)
    assert wrong.paths()[1:4] == [[1], [0], [3]]
    assert tree.tokens.tolist() == [9, 1, 2, 3, 4, 5, 6]


def test_best_of_the_deepest_paths_is_dialled():
    tree = from_paths(9, [[1, 4], [2, 5]])
    tree = replace(tree, scores=np.array([1, 0.4, 0.6, 0.3, 0.5], np.float32))
    assert [tree.tokens[node] for node in deepest_path(tree)] == [2, 5]


class Recording(NoDraft):
    """Drafts 1, 2, 3 and keeps the steps it observes."""

    def __init__(self):
        self.steps = []

    def propose(self, contexts, budget):
        return [chain([context.root, 1, 2, 3]) for context in contexts]

    def observe(self, steps):
        self.steps += steps


@pytest.mark.parametrize(
    ("rate", "learns", "observed"),
    [(1.0, True, [1, 2, 3]), (0.0, True, [-1]), (1.0, False, [5, 6])],
)
def test_drafter_learns_from_its_own_tokens(rate, learns, observed):
    context = DraftContext(0, [8], [], tokens=[4], sampler=Sampler(SamplingParams(seed=1), [8], 9))
    drafter, answers = Recording(), {answer_key([8], 1, 0.0): [4, 5, 6, 7, 8]}
    dialled = Dialled(drafter, rate, answers, learns=learns)
    dialled.start(context)
    [tree] = dialled.propose([context], Budget(8, np.ones(9)))
    assert (tree.tokens[1:].tolist() == [5, 6, 7]) == bool(rate)
    dialled.observe([TargetStep(0, [5, 6])])
    assert drafter.steps[0].tokens == observed


def test_drafts_beyond_the_answers_end_stay():
    context = DraftContext(0, [8], [], tokens=[4], sampler=Sampler(SamplingParams(seed=1), [8], 9))
    dialled = Dialled(Recording(), 1.0, {answer_key([8], 1, 0.0): [4, 5]}, learns=True)
    dialled.start(context)
    [tree] = dialled.propose([context], Budget(8, np.ones(9)))
    assert tree.tokens.tolist() == [4, 5, 2, 3]


def test_variant_of_a_rate():
    variant = graft_variant("rapid+copy@0.8")
    assert (variant.process, variant.method) == ("graft", "rapid+copy@0.8")
    assert (variant.drafts, variant.exactness) == (True, "text")
    assert preset_of(variant.method) == "rapid+copy"


def test_rates_are_measured_beside_other_presets(settings, measure, tiny_folder):
    drafts = ("plain", "sd", "sd@0", "sd@1")
    more = {"categories": ("qa",), "draft_model": str(tiny_folder), "load_options": {"gamma": 2}}
    complete, results, _ = measure(settings(limit=1, drafts=drafts, ignore_eos=True, **more))
    rows = {row["variant"]: row for row in results.rows}
    assert complete
    assert len({row["output"] for row in rows.values()}) == 1
    assert rows["sd@0"]["steps"] == rows["plain"]["steps"] > rows["sd@1"]["steps"]
