"""From names to an engine with a draft model or a head."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest
from daily import daily
from tiny import save_tiny, tiny_network
from tiny_heads import tiny_head
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import graft
from graft.assemble import heads as assembled_heads
from graft.assemble.drafters import make_drafter
from graft.assemble.presets import HEAD, MODEL, NETWORK, TARGET, TOKENIZER, presets_of
from graft.errors import CheckpointError, InputError
from graft.home import home
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.files import write_head
from graft.models.heads.load import load_head
from graft.models.language_model import LanguageModel
from graft.sampling import SamplingParams
from graft.train.settings import KINDS


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """A draft model of another size with a padded vocabulary."""
    return save_tiny(tmp_path_factory.mktemp("draft"), layers=1, hidden=32, vocab=160)


def load(model, **options):
    return graft.load(str(model), dtype="fp32", device="cpu", **options)


def test_draft_model_adds_its_presets(target, draft):
    engine = load(target, draft_model=str(draft), draft="casd", kv_cache=50_000_000)
    alone = [*presets_of(), *presets_of(TOKENIZER), *presets_of(TARGET)]
    assert engine.presets == [*alone, *presets_of(MODEL), *presets_of(NETWORK)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    result = engine.generate("the end", params)
    assert result.token_ids == engine.generate("the end", params, draft="plain").token_ids
    assert result.stats.drafted_by_source["model"] > 0


@pytest.mark.parametrize(
    ("options", "sequences"), [({"max_batch": 3}, [3, 3]), ({"warm": False}, [])]
)
def test_both_models_are_warmed_up(target, draft, options, sequences, monkeypatch):
    warmed = []
    monkeypatch.setattr(LanguageModel, "warm_up", lambda _, count: warmed.append(count))
    load(target, draft_model=str(draft), kv_cache=50_000_000, **options)
    assert warmed == sequences


def test_presets_without_a_draft_model_are_refused_before_loading():
    for name in [*presets_of(MODEL), *presets_of(NETWORK)]:
        with pytest.raises(InputError, match=f"draft '{name}' needs a draft model"):
            graft.load("no-such-model", draft=name, head=None)


def test_self_speculation_presets(target):
    engine = load(target, draft="magicdec+copy")
    assert set(presets_of(TARGET)) < set(engine.presets)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = [5 + i * i % 90 for i in range(400)]
    plain = engine.generate(prompt, params, draft="plain").token_ids
    for draft in (None, *presets_of(TARGET)):
        assert engine.generate(prompt, params, draft=draft).token_ids == plain
    result = engine.generate(prompt, params, draft="magicdec-snapkv")
    assert result.stats.drafted_by_source["SnapKV"] > 0


@pytest.mark.parametrize("name", ["magicdec", "copy+triforce"])
def test_self_speculation_needs_the_target(name):
    with pytest.raises(InputError, match="needs the target itself") as refused:
        make_drafter(name)
    assert "\n" not in str(refused.value)


def test_triforce_with_a_head_needs_one():
    with pytest.raises(InputError, match="draft 'triforce-head' needs a draft head"):
        graft.load("no-such-model", draft="triforce-head", head=None)


def test_draft_model_with_another_tokenizer_is_refused(target, tmp_path):
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
def test_head_adds_its_presets(target, heads, kind):
    engine = load(target, head=str(heads[kind]), draft=f"{kind}+copy")
    alone = [*presets_of(), *presets_of(TOKENIZER), *presets_of(TARGET)]
    own = ["head", kind, "triforce-head"]
    assert engine.presets == [*alone, *own, *presets_of(NETWORK), f"{kind}+copy"]
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
    assert {*KINDS, "head"} <= set(load(target).presets)
    assert "head" not in load(target, head=None).presets


def test_installed_head_is_found_by_its_name(target, heads):
    shutil.copytree(heads["eagle3"], home() / "heads" / "mine")
    assert "eagle3" in load(target, head="mine").presets
    with pytest.raises(CheckpointError, match="theirs is not a draft head"):
        load(target, head="theirs")


def test_head_of_a_hub_id_is_taken_from_the_hubs_cache(target, heads, monkeypatch):
    asked = []

    def cached(repository, **options):
        asked.append((repository, options["local_files_only"]))
        return str(heads["eagle3"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    assert "eagle3" in load(target, head="someone/eagle3-tiny").presets
    assert set(asked) == {("someone/eagle3-tiny", True)}


def test_head_of_other_weights_is_used_only_if_it_is_named(target, heads, tmp_path, caplog):
    shutil.copytree(heads["eagle2"], home() / "heads" / "eagle2")
    other = save_tiny(tmp_path / "other", seed=9)
    assert "head" not in load(other).presets
    engine = load(other, head=str(heads["eagle2"]))
    assert "was trained for other weights" in caplog.text
    params = SamplingParams(max_tokens=20, ignore_eos=True, seed=1)
    drafted, plain = (
        engine.generate("the end", params, draft=each) for each in ("eagle2", "plain")
    )
    assert drafted.stats.drafted_by_source["head"] > 0
    assert drafted.token_ids == plain.token_ids


def test_preset_of_another_kind_of_head_is_refused(target, heads):
    with pytest.raises(
        InputError, match="'longspec' needs a head of that kind; the one here is eagle2"
    ):
        load(target, head=str(heads["eagle2"]), draft="longspec")


def test_presets_without_a_head_are_refused_before_loading():
    for name in presets_of(HEAD):
        with pytest.raises(InputError, match=f"draft '{name}' needs a draft head"):
            graft.load("no-such-model", draft=name, head=None)


def test_heads_of_other_models_add_no_presets(target):
    with pytest.raises(InputError, match="draft 'eagle2' needs a draft head; name its folder"):
        load(target, draft="eagle2")


@pytest.fixture
def loaded(monkeypatch):
    """The kinds of heads that were loaded, in order."""
    kinds = []

    def recorded(folder, target):
        runner = load_head(folder, target)
        kinds.append(runner.config.kind)
        return runner

    monkeypatch.setattr(assembled_heads, "load_head", recorded)
    return kinds


def test_head_is_loaded_at_first_use(target, heads, loaded):
    engine = load(target, head=str(heads["eagle2"]), draft="plain")
    assert {"head", "eagle2", "casd"} < set(engine.presets)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    plain = engine.generate("the end", params)
    assert engine.generate("the end", params, draft="pld").token_ids == plain.token_ids
    assert loaded == []
    for draft in ("eagle2", "casd", "auto"):
        assert engine.generate("the end", params, draft=draft).token_ids == plain.token_ids
    assert loaded == ["eagle2"]


def test_head_is_loaded_while_other_requests_run(target, heads, loaded):
    engine = load(target, head=str(heads["eagle2"]), draft="plain")
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    expected = engine.generate("the end", params).token_ids
    before = engine.stream("the end", params)
    next(before)
    with ThreadPoolExecutor(2) as pool:
        drafted = [pool.submit(engine.generate, "the end", params, draft=d) for d in ("head",) * 2]
        assert before.finish().token_ids == expected
    assert [each.result().token_ids for each in drafted] == [expected] * 2
    assert loaded == ["eagle2"]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"draft": "plain"}, []),
        ({"draft": "copy+magicdec"}, []),
        ({}, ["eagle3"]),
        ({"draft": "longspec+copy"}, ["longspec"]),
        ({"draft": "plain", "warm": False}, []),
        ({"warm": False}, ["eagle3"]),
    ],
)
def test_only_heads_that_the_draft_uses_are_loaded(target, heads, loaded, options, kinds):
    for folder in heads.values():
        shutil.copytree(folder, home() / "heads" / folder.name)
    load(target, **options)
    assert loaded == kinds


def test_unused_head_of_another_shape_is_refused(heads, tmp_path):
    save_tiny(tmp_path, hidden_size=32)
    with pytest.raises(CheckpointError, match="belongs to .* its hidden is"):
        load(tmp_path, head=str(heads["eagle2"]), draft="plain")


def test_casd_prefers_a_head_to_a_draft_model(target, draft, heads):
    engine = load(target, draft_model=str(draft), head=str(heads["longspec"]))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    drafted = engine.generate("the end", params, draft="casd").stats.drafted_by_source
    assert drafted["head"] > 0
    assert drafted["model"] == 0


def test_missing_head_is_refused_before_loading(tmp_path):
    with pytest.raises(CheckpointError, match="is not a draft head"):
        graft.load("no-such-model", head=str(tmp_path))


LONG = "Where did the winner go? " + "The end and the answer came after the rain. " * 60


def test_rapid_drafts_from_retrieved_passages(target, draft):
    """With the target itself and with a draft model."""
    pytest.importorskip("graft.retrieval.shorten")
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    for options in ({}, {"draft_model": str(draft), "draft_device": "cpu"}):
        engine = load(target, draft="rapid", gamma=4, head=None, retrieved=200, **options)
        result = engine.generate([{"role": "user", "content": LONG}], params)
        plain = engine.generate([{"role": "user", "content": LONG}], params, draft="plain")
        assert result.token_ids == plain.token_ids
        assert result.stats.drafted_by_source["short context"] > 0
        assert result.lossless


@pytest.mark.parametrize(
    ("verifier", "draft_of"),
    daily(
        product(["rejection", "rapid", "rapid-phat"], ["rapid", "rapid-up", "sd"]),
        *(("rejection", "rapid"), ("rejection", "sd"), ("rapid", "rapid-up")),
        *(("rapid", "rapid"), ("rapid-phat", "sd")),
    ),
)
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
    ("options", "message"),
    [
        ({"retrieved": 5}, "retrieved must be a number of tokens from 64 on"),
        ({"retrieved": "all"}, "retrieved must be a number of tokens from 64 on"),
        ({"gamma": 0}, "gamma must be between 1 and"),
        ({"verifier": "rapid", "draft": "auto"}, "needs a chain sampled from a model"),
        ({"draft_device": "cpu"}, "a draft device needs a draft model"),
    ],
)
def test_wrong_options_are_refused_before_loading(options, message):
    with pytest.raises(InputError, match=message) as refused:
        graft.load("no-such-model", head=None, **options)
    assert "\n" not in str(refused.value)
