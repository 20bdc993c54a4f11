"""From names to an engine with a draft model or a head."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tiny import tiny_network, tiny_tokenizer
from tiny_heads import KINDS, tiny_head
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import graft
from graft.assemble import (
    EITHER_PRESETS,
    HEAD_PRESETS,
    MODEL_PRESETS,
    PRESETS,
    SELF_PRESETS,
    SHORT_PRESETS,
    make_drafter,
)
from graft.assemble import heads as assembled_heads
from graft.errors import CheckpointError, InputError
from graft.home import home
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.files import write_head
from graft.models.heads.load import load_head
from graft.models.language_model import LanguageModel
from graft.sampling import SamplingParams


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    tiny_network().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """Another size, and a padded vocabulary."""
    folder = tmp_path_factory.mktemp("draft")
    tiny_network(layers=1, hidden=32, vocab=160).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def load(model, **options):
    return graft.load(str(model), dtype="fp32", device="cpu", **options)


def test_a_draft_model_brings_its_presets(target, draft):
    engine = load(target, draft_model=str(draft), draft="casd", kv_cache=50_000_000)
    alone = [*PRESETS, *SHORT_PRESETS, *SELF_PRESETS]
    assert engine.presets == [*alone, *MODEL_PRESETS, *EITHER_PRESETS]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    result = engine.generate("the end", params)
    assert result.token_ids == engine.generate("the end", params, draft="plain").token_ids
    assert result.stats.drafted_by_source["model"] > 0


@pytest.mark.parametrize(
    ("options", "sequences"), [({"max_batch": 3}, [3, 3]), ({"warm": False}, [])]
)
def test_both_models_are_warmed_up_unless_told_not_to(
    target, draft, options, sequences, monkeypatch
):
    warmed = []
    monkeypatch.setattr(LanguageModel, "warm_up", lambda _, count: warmed.append(count))
    load(target, draft_model=str(draft), kv_cache=50_000_000, **options)
    assert warmed == sequences


def test_without_one_they_are_refused_before_anything_is_loaded():
    for name in [*MODEL_PRESETS, *EITHER_PRESETS]:
        with pytest.raises(InputError, match=f"draft '{name}' needs a draft model"):
            graft.load("no-such-model", draft=name, head=None)


def test_the_target_drafts_for_itself(target):
    engine = load(target, draft="magicdec+copy")
    assert set(SELF_PRESETS) < set(engine.presets)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = [5 + i * i % 90 for i in range(400)]
    plain = engine.generate(prompt, params, draft="plain").token_ids
    for draft in (None, *SELF_PRESETS):
        assert engine.generate(prompt, params, draft=draft).token_ids == plain
    result = engine.generate(prompt, params, draft="magicdec-snapkv")
    assert result.stats.drafted_by_source["SnapKV"] > 0


@pytest.mark.parametrize("name", ["magicdec", "copy+triforce"])
def test_nobody_else_drafts_like_the_target_itself(name):
    with pytest.raises(InputError, match="is made of the target itself") as refused:
        make_drafter(name)
    assert "\n" not in str(refused.value)


def test_triforce_with_a_head_needs_one():
    with pytest.raises(InputError, match="draft 'triforce-head' needs a draft head"):
        graft.load("no-such-model", draft="triforce-head", head=None)


def test_a_draft_model_with_another_tokenizer_is_refused(target, tmp_path):
    tiny_network().save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has another tokenizer than") as refused:
        load(target, draft_model=str(tmp_path))
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def heads(target, tmp_path_factory):
    """A head of each kind for the target, by its kind."""
    checkpoint, network = locate(str(target)), tiny_network()
    folders = {}
    for kind in KINDS:
        made = tiny_head(kind, network, draft_vocabulary=90)
        made.config = replace(made.config, fingerprint=checkpoint.fingerprint)
        folders[kind] = tmp_path_factory.mktemp("heads") / kind
        write_head(folders[kind], made, dtype="fp32")
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_brings_its_presets(target, heads, kind):
    engine = load(target, head=str(heads[kind]), draft=f"{kind}+copy")
    alone = [*PRESETS, *SHORT_PRESETS, *SELF_PRESETS]
    own = ["head", kind, "triforce-head"]
    assert engine.presets == [*alone, *own, *EITHER_PRESETS, f"{kind}+copy"]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    result = engine.generate("the end", params)
    assert result.token_ids == engine.generate("the end", params, draft="plain").token_ids
    assert result.stats.drafted_by_source["head"] > 0


def test_installed_heads_are_found_by_the_weights_they_were_trained_for(target, heads):
    for folder in heads.values():
        shutil.copytree(folder, home() / "heads" / folder.name)
    broken = home() / "heads" / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    assert {"eagle2", "longspec", "head"} <= set(load(target).presets)
    assert "head" not in load(target, head=None).presets


def test_a_head_of_another_model_is_not_installed_for_this_one(target, heads, tmp_path):
    shutil.copytree(heads["eagle2"], home() / "heads" / "eagle2")
    other = tmp_path / "other"
    tiny_network(seed=9).save_pretrained(other)
    tiny_tokenizer().save_pretrained(other)
    assert "head" not in load(other).presets
    with pytest.raises(CheckpointError, match="was trained for other weights") as refused:
        load(other, head=str(heads["eagle2"]))
    assert "\n" not in str(refused.value)


def test_a_head_of_another_kind_is_named(target, heads):
    with pytest.raises(
        InputError, match="'longspec' needs a head of that kind; the one here is eagle2"
    ):
        load(target, head=str(heads["eagle2"]), draft="longspec")


def test_without_a_head_its_presets_are_refused_before_anything_is_loaded():
    for name in HEAD_PRESETS:
        with pytest.raises(InputError, match=f"draft '{name}' needs a draft head"):
            graft.load("no-such-model", draft=name, head=None)


def test_heads_of_other_models_bring_no_presets(target):
    with pytest.raises(InputError, match="draft 'eagle2' needs a draft head; name its folder"):
        load(target, draft="eagle2")


@pytest.fixture
def started(monkeypatch):
    """The kinds of heads that were put to work, as they were."""
    kinds = []

    def start(folder, target):
        runner = load_head(folder, target)
        kinds.append(runner.config.kind)
        return runner

    monkeypatch.setattr(assembled_heads, "load_head", start)
    return kinds


def test_a_head_is_put_to_work_when_it_is_first_asked_for(target, heads, started):
    engine = load(target, head=str(heads["eagle2"]), draft="plain")
    assert {"head", "eagle2", "casd"} < set(engine.presets)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    plain = engine.generate("the end", params)
    assert engine.generate("the end", params, draft="pld").token_ids == plain.token_ids
    assert started == []
    for draft in ("eagle2", "casd", "auto"):
        assert engine.generate("the end", params, draft=draft).token_ids == plain.token_ids
    assert started == ["eagle2"]


def test_a_request_may_bring_a_head_to_work_while_others_are_answered(target, heads, started):
    engine = load(target, head=str(heads["eagle2"]), draft="plain")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = engine.generate("the end", params).token_ids
    before = engine.stream("the end", params)
    next(before)
    with ThreadPoolExecutor(2) as pool:
        drafted = [pool.submit(engine.generate, "the end", params, draft=d) for d in ("head",) * 2]
        assert before.finish().token_ids == expected
    assert [each.result().token_ids for each in drafted] == [expected] * 2
    assert started == ["eagle2"]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"draft": "plain"}, []),
        ({"draft": "copy+magicdec"}, []),
        ({}, ["eagle2"]),
        ({"draft": "longspec+copy"}, ["longspec"]),
        ({"draft": "plain", "warm": False}, []),
        ({"warm": False}, ["eagle2"]),
    ],
)
def test_of_installed_heads_those_are_put_to_work_that_the_draft_uses(
    target, heads, started, options, kinds
):
    for folder in heads.values():
        shutil.copytree(folder, home() / "heads" / folder.name)
    load(target, **options)
    assert started == kinds


def test_a_head_of_another_model_is_refused_even_if_nobody_uses_it(heads, tmp_path):
    tiny_network(seed=9).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="was trained for other weights"):
        load(tmp_path, head=str(heads["eagle2"]), draft="plain")


def test_casd_prefers_a_head_to_a_draft_model(target, draft, heads):
    engine = load(target, draft_model=str(draft), head=str(heads["longspec"]))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    drafted = engine.generate("the end", params, draft="casd").stats.drafted_by_source
    assert drafted["head"] > 0
    assert drafted["model"] == 0


def test_a_head_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(CheckpointError, match="is not a draft head's folder"):
        graft.load("no-such-model", head=str(tmp_path))


LONG = "Where did the winner go? " + "The end and the answer came after the rain. " * 60


def test_rapid_drafts_from_what_was_retrieved(target, draft):
    """By the target itself, and by another model; the same text."""
    pytest.importorskip("graft.retrieval.shorten")
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    for options in ({}, {"draft_model": str(draft), "draft_device": "cpu"}):
        engine = load(target, draft="rapid", gamma=4, head=None, retrieved=200, **options)
        result = engine.generate([{"role": "user", "content": LONG}], params)
        plain = engine.generate([{"role": "user", "content": LONG}], params, draft="plain")
        assert result.token_ids == plain.token_ids
        assert result.stats.drafted_by_source["short context"] > 0
        assert result.lossless


@pytest.mark.parametrize("draft_of", ["rapid", "rapid-up", "sd"])
@pytest.mark.parametrize("verifier", ["rejection", "rapid", "rapid-phat"])
def test_verifiers_with_q(target, draft, verifier, draft_of):
    pytest.importorskip("graft.retrieval.shorten")
    engine = load(
        target, draft_model=str(draft), draft=draft_of, verifier=verifier, gamma=3,
        shift=graft.Shift(eta=5.0), head=None,
    )  # fmt: skip
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=1.0, seed=1)
    result = engine.generate([{"role": "user", "content": LONG}], params)
    assert result.lossless == (verifier == "rejection")
    assert str(result.promise) != "same text"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retrieved": 5}, "retrieved must be a number of tokens from 64 on"),
        ({"retrieved": "all"}, "retrieved must be a number of tokens from 64 on"),
        ({"gamma": 0}, "gamma must be between 1 and"),
        ({"verifier": "rapid", "draft": "auto"}, "needs a chain sampled from a model"),
        ({"draft_device": "cpu"}, "a draft device needs a draft model"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_loaded(options, said):
    with pytest.raises(InputError, match=said) as refused:
        graft.load("no-such-model", head=None, **options)
    assert "\n" not in str(refused.value)
