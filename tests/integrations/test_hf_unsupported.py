"""What the drop-in does not do is refused by name, in one line."""

import pytest
import torch
from hf_cases import SHAPES, drafted
from hf_snapshot import snapshot
from tiny import tiny_network
from tiny_architectures import REFUSED, build
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration

from graft.errors import InputError, UnsupportedModelError

pytestmark = pytest.mark.usefixtures("one_thread")
REFUSALS = {
    "beam search": {"num_beams": 2},
    "assisted generation": {"prompt_lookup_num_tokens": 3},
    "output_attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "guidance_scale": {"guidance_scale": 1.5},
    "past_key_values": {"past_key_values": DynamicCache()},
    "cache_implementation='offloaded'": {"cache_implementation": "offloaded"},
}


def makes_streams() -> bool:
    """A torch built for CUDA cannot where there is no driver, and transformers' offloaded cache
    begins with one, before anybody is asked."""
    try:
        torch.Stream()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", REFUSALS)
def test_unsupported_options_are_errors_with_their_name(unchanged, name):
    if "offloaded" in name and not makes_streams():
        pytest.skip("transformers cannot offload here")
    with pytest.raises(InputError) as error:
        drafted(unchanged, **SHAPES["one"], max_new_tokens=3, **REFUSALS[name])
    assert str(error.value).startswith(name)
    assert "\n" not in str(error.value)


def test_an_assistant_is_an_error(unchanged):
    with pytest.raises(InputError, match="assisted generation"):
        drafted(unchanged, **SHAPES["one"], max_new_tokens=3, assistant_model=tiny_network())


def test_inputs_embeds_and_position_ids_are_errors(unchanged):
    embedded = unchanged.get_input_embeddings()(SHAPES["one"]["input_ids"])
    with pytest.raises(InputError, match="inputs_embeds"):
        drafted(unchanged, inputs_embeds=embedded, max_new_tokens=3)
    places = torch.arange(SHAPES["one"]["input_ids"].shape[1])[None] + 7
    with pytest.raises(InputError, match="position_ids"):
        drafted(unchanged, **SHAPES["one"], position_ids=places, max_new_tokens=3)


def test_right_padding_is_an_error(unchanged):
    flipped = {name: tensor.flip(1) for name, tensor in SHAPES["ragged"].items()}
    with pytest.raises(InputError, match="padding_side='left'"):
        drafted(unchanged, **flipped, max_new_tokens=3)


def test_encoder_decoders_are_an_error():
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
                      decoder_start_token_id=0)  # fmt: skip
    with pytest.raises(InputError, match="encoder-decoder"):
        drafted(T5ForConditionalGeneration(config).eval(), input_ids=torch.tensor([[3, 4]]))


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_models_are_an_error_of_one_line_and_unchanged(name):
    model = build(name)
    before = snapshot(model)
    with pytest.raises(UnsupportedModelError, match="cannot be used") as error:
        drafted(model, input_ids=torch.tensor([[3, 4, 5]]), max_new_tokens=3)
    assert "\n" not in str(error.value)
    assert snapshot(model) == before
