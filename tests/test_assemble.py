"""From names to an engine with a draft model."""

import pytest
from tiny import tiny_network, tiny_tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import graft
from graft.assemble import MODEL_PRESETS, PRESETS
from graft.errors import InputError
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
    assert engine.presets == [*PRESETS, *MODEL_PRESETS]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    result = engine.generate("the end", params)
    assert result.token_ids == engine.generate("the end", params, draft="plain").token_ids
    assert result.stats.drafted_by_source["model"] > 0


def test_without_one_they_are_refused_before_anything_is_loaded():
    for name in MODEL_PRESETS:
        with pytest.raises(InputError, match=f"draft '{name}' needs a draft model"):
            graft.load("no-such-model", draft=name)


def test_a_draft_model_with_another_tokenizer_is_refused(target, tmp_path):
    tiny_network().save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has another tokenizer than") as refused:
        load(target, draft_model=str(tmp_path))
    assert "\n" not in str(refused.value)
