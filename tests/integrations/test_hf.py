"""`model.generate` with and without Graft: the same tokens, scores and shapes."""

import numpy as np
import pytest
import torch
from daily import daily
from hf_cases import (
    PAD,
    SHAPES,
    EndsRows,
    NumberedRows,
    Remembers,
    assert_same,
    drafted,
    fresh,
    left_padded,
    make,
)
from tiny_architectures import HOOKED, LLAMA_SHAPED, build
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, WatermarkingConfig

import graft
from graft.errors import ContextLengthError
from graft.integrations import hf

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = {
    "plain": {},
    "max_length": {"max_length": 50, "max_new_tokens": None},
    "min_new_tokens": {"min_new_tokens": 30, "eos_token_id": list(range(0, 128, 5))},
    "min_length": {"min_length": 60, "eos_token_id": list(range(0, 128, 5))},
    "many end tokens": {"eos_token_id": list(range(0, 128, 11))},
    "no end token": {"eos_token_id": None},
    "repetition": {"repetition_penalty": 1.1},
    "no repeated n-grams": {"no_repeat_ngram_size": 6},
    "bad words": {"bad_words_ids": [[40], [50, 51], [60]]},
    "forced end": {"forced_eos_token_id": 7},
    "forced start": {"forced_bos_token_id": 9},
    "suppressed": {"suppress_tokens": list(range(20, 60))},
    "suppressed at first": {"begin_suppress_tokens": list(range(20, 120))},
    "bias": {"sequence_bias": {(40,): 2.0, (50, 51): -3.0}},
    "decay": {"exponential_decay_length_penalty": (10, 1.2)},
    "encoder penalty": {"encoder_repetition_penalty": 1.3},
    "encoder n-grams": {"encoder_no_repeat_ngram_size": 2},
    "prefix function": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(3 + row, 128, 2))},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.5, seeding_scheme="selfhash")},
    "remembering": {"logits_processor": [Remembers]},
    "numbered rows": {"logits_processor": [NumberedRows]},
    "both": {"logits_processor": [Remembers, NumberedRows], "repetition_penalty": 1.05},
    "row ends": {"stopping_criteria": [EndsRows]},
    "row ends, no end token": {"stopping_criteria": [EndsRows], "eos_token_id": None},
    "time": {"max_time": 1e-9},
    "renormalised": {"renormalize_logits": True, "remove_invalid_values": True},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}

# Options act on scores and ends, whoever computed them; the caller's own modules see only these.
CASES = [("panels", option) for option in OPTIONS]
CASES += [("hook", option) for option in ("plain", "both", "row ends", "no cache", "static cache")]


@pytest.mark.parametrize("shape", daily(SHAPES, "ragged"))
@pytest.mark.parametrize(("kind", "option"), CASES)
def test_greedy_tokens_equal_transformers(kind, option, shape, made):
    model = made[kind]
    settings = {"do_sample": False, "max_new_tokens": 36, **SHAPES[shape]}
    expected = model.generate(**{**settings, **fresh(OPTIONS[option])})
    found = drafted(model, **{**settings, **fresh(OPTIONS[option])})
    assert found.tolist() == expected.tolist()
    if option in ("plain", "no end token"):
        assert max(stats.tokens_per_step for stats in hf.last_stats(model)) > 1.5


@pytest.mark.parametrize("draft", daily(["auto", "plain", "pld", "igpg"], "auto", "plain"))
def test_every_draft_gives_the_same_tokens(unchanged, draft):
    options = {**SHAPES["ragged"], "max_new_tokens": 60, "do_sample": False, "eos_token_id": None}
    expected = unchanged.generate(**options)
    assert drafted(unchanged, draft=draft, **options).tolist() == expected.tolist()
    steps = [stats.tokens_per_step for stats in hf.last_stats(unchanged)]
    assert (max(steps) == 1) == (draft == "plain")


@pytest.mark.parametrize("name", [*LLAMA_SHAPED, *HOOKED])
def test_every_architecture_gives_the_same_tokens_in_a_ragged_batch(name):
    model = build(name)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 60, length).tolist() for length in (21, 9, 14)]
    rows = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": PAD}
    assert_same(model, **left_padded(prompts), **rows)


def test_a_mask_is_inferred_from_padding_as_transformers_does(unchanged):
    assert_same(
        unchanged, input_ids=SHAPES["ragged"]["input_ids"], max_new_tokens=20, do_sample=False
    )


def test_a_text_may_grow_beyond_the_trained_positions_as_in_transformers():
    model = make("panels", max_position_embeddings=32)
    assert_same(model, **SHAPES["ragged"], max_new_tokens=60, do_sample=False)


def test_the_generation_config_and_the_models_defaults_apply(model):
    model.generation_config.repetition_penalty = 1.2
    config = GenerationConfig(max_new_tokens=30, eos_token_id=[3, 60], pad_token_id=PAD)
    assert_same(model, **SHAPES["ragged"], generation_config=config)


def test_no_inputs_start_from_the_beginning_of_text(unchanged):
    assert_same(unchanged, bos_token_id=5, max_new_tokens=20, do_sample=False)


SCORED = [("panels", option) for option in ("plain", "repetition", "row ends", "many end tokens")]


@pytest.mark.parametrize("shape", daily(SHAPES, "ragged"))
@pytest.mark.parametrize(("kind", "option"), [*SCORED, ("lean", "plain"), ("hook", "row ends")])
def test_scores_and_logits_equal_transformers(kind, option, shape, made):
    model = made[kind]
    options = {
        "do_sample": False, "max_new_tokens": 32, **SHAPES[shape], **OPTIONS[option],
        "return_dict_in_generate": True, "output_scores": True, "output_logits": True,
    }  # fmt: skip
    expected, found = model.generate(**fresh(options)), drafted(model, **fresh(options))
    assert type(found) is type(expected)
    assert found.sequences.tolist() == expected.sequences.tolist()
    width = options["input_ids"].shape[1]
    for name in ("scores", "logits"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert len(ours) == len(theirs) == found.sequences.shape[1] - width
        for row, stats in enumerate(found.graft_stats):
            for one, other in zip(ours[: stats.tokens], theirs[: stats.tokens], strict=True):
                assert one.shape == other.shape
                torch.testing.assert_close(one[row], other[row], rtol=1e-4, atol=1e-4)
            for padding in ours[stats.tokens :]:
                assert padding[row].softmax(-1)[PAD] == 1
    sums = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    assert sums.isfinite().all()


def test_criteria_get_scores_as_in_transformers(unchanged):
    options = {
        **SHAPES["ragged"], "max_new_tokens": 40, "do_sample": False,
        "return_dict_in_generate": True, "output_scores": True,
    }  # fmt: skip
    expected = unchanged.generate(**options, stopping_criteria=[EndsRows(-0.4)])
    found = drafted(unchanged, **options, stopping_criteria=[EndsRows(-0.4)])
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(found.scores) < 40


def test_models_with_dynamic_rotary_embeddings_keep_their_maximum_length():
    rotary = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = make("hook", max_position_embeddings=64, rope_parameters=rotary)
    assert_same(model, **SHAPES["one"], max_new_tokens=20, do_sample=False)
    with pytest.raises(ContextLengthError, match="lower max_new_tokens"):
        drafted(model, **SHAPES["one"], max_new_tokens=100)


def test_statistics_of_a_call_come_with_its_output(model):
    assert hf.last_stats(model) == []
    options = {**SHAPES["ragged"], "max_new_tokens": 20, "return_dict_in_generate": True}
    output = drafted(model, **options, do_sample=False)
    assert [stats.tokens for stats in output.graft_stats] == [20, 20, 20]
    assert hf.last_stats(model) == output.graft_stats
    assert "graft_stats" not in output.keys()  # noqa: SIM118  a ModelOutput's own fields


@pytest.mark.slow
def test_a_real_model_gives_the_same_tokens(smollm2):
    folder = smollm2.loaded.checkpoint.folder
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = "Lift A1 is in the main entrance. Lift A2 is in the main entrance. Lift B1 is in"
    inputs = tokenizer([text, "List: 1, 2, 3, 1, 2, 3, 1, 2,"], return_tensors="pt", padding=True)
    expected = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    found = graft.generate(model, inputs, max_new_tokens=20, do_sample=False)
    assert found.tolist() == expected.tolist()
    assert max(stats.tokens_per_step for stats in hf.last_stats(model)) > 1.5


@pytest.mark.parametrize("kind", ["panels", "hook"])
def test_a_pool_drafts_from_earlier_answers_of_the_same_name(kind):
    model = make(kind)
    options = {**SHAPES["one"], "max_new_tokens": 40, "do_sample": False}
    expected = model.generate(**options).tolist()
    drafted_tokens = {}
    for pool in (True, True, "another user", False):
        assert drafted(model, draft="auto", pool=pool, **options).tolist() == expected
        [stats] = hf.last_stats(model)
        drafted_tokens.setdefault(pool, []).append(stats.accepted_by_source["pool"])
    assert drafted_tokens["another user"] == drafted_tokens[False] == [0]
    assert drafted_tokens[True][0] == 0 < drafted_tokens[True][1]
    hf.release(model)
    drafted(model, draft="auto", pool=True, **options)
    assert hf.last_stats(model)[0].accepted_by_source["pool"] == 0
