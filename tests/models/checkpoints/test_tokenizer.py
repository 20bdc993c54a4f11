"""Our tokenizer gives transformers' ids and texts; fingerprints; batches of texts."""

import pytest
import tiny_gguf
from jinja2 import TemplateError
from tiny import save_tiny, tiny_network, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from graft.errors import CheckpointError
from graft.home import home
from graft.models.checkpoints.gguf import convert
from graft.models.checkpoints.tokenizer import (
    PROBE,
    batch_encoder,
    from_transformers,
    read_tokenizer,
    tokenizer_fingerprint,
    vocabulary_size,
)

USERS_HOME = home()  # before a test changes it
TEXTS = [
    "", " ", "Hello, world!", "  two  spaces \n\n\tand a tab", PROBE, "naïve café — “quoted” …",
    "数据 Привет مرحبا 한국어 😀👩‍👩‍👧", "1234567890 3.14e-10", "<|im_start|>user\nhi<|im_end|>\n",
    "don't can't we're I'm", "x = [i ** 2 for i in range(10)]  # squares", "\u0000\u200b\ufeff",
    "<|endoftext|>the end</s><s> the start", "e\u0301 \u00e9 \u1e9b\u0323",
]  # fmt: skip
USER, ASSISTANT = {"role": "user", "content": " Why? "}, {"role": "assistant", "content": "So."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"é": ["<b>", 1, None]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
CHATS = [
    ([USER], {}),
    ([USER], {"add_generation_prompt": True}),
    ([{"role": "system", "content": "Be brief."}, USER, ASSISTANT, USER], {}),
    ([USER, ASSISTANT | {"thinking": "Hm."}, USER], {"tools": [TOOL], "flag": True}),
    ([USER, CALL, {"role": "tool", "content": '{"a": 1}'}], {"documents": [{"title": "t"}]}),
]
TEMPLATES = {
    "everything": """{%- set ns = namespace(count=0) %}{{ bos_token }}
    {% for message in messages %}
        {% if message.role == 'skip' %}{% continue %}{% endif %}
        {% generation %}{{ message.role }}: {{ message['content'] | trim }}{% endgeneration %}
        {{ message.reasoning_content }} {{ message.tool_calls | tojson }}
        {%- set ns.count = ns.count + 1 %}
    {% endfor %}
    {{ ns.count }} {{ tools | tojson(indent=2) }} {{ documents }} {{ dict(a=1) }} {{ flag }}
    {{ eos_token }} {{ strftime_now('%Y') }} {{ add_generation_prompt }} {{ unknown }}""",
    "raising": "{{ raise_exception('roles must alternate') }}",
    "unsafe": "{{ messages.__class__ }}{% set ns = namespace(_a=1) %}",
    "broken": "{% if %}",
}


def bert_like() -> PreTrainedTokenizerFast:
    """Cleans up spaces, lowers nothing, puts special tokens around a text."""
    words = ["[UNK]", "[CLS]", "[SEP]", "Hello", ",", "world", "!", "don", "'", "t", "we", "re"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    around = [("[CLS]", 1), ("[SEP]", 2)]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=around
    )
    backend.enable_truncation(8)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", clean_up_tokenization_spaces=True
    )


@pytest.fixture(scope="module", params=["tiny", "gguf", "smollm2", "bert-like"])
def theirs(request, tmp_path_factory):
    """transformers' own tokenizers, as many kinds as there are here."""
    if request.param == "tiny":
        return tiny_tokenizer()
    if request.param == "bert-like":
        return bert_like()
    if request.param == "gguf":
        file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
        tiny_gguf.write(file)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRAFT_HOME", str(file.parent))
            return AutoTokenizer.from_pretrained(convert(file, progress=False))
    folders = list((USERS_HOME / "models").glob("SmolLM2*"))
    return AutoTokenizer.from_pretrained(folders[0]) if folders else pytest.skip("not installed")


@pytest.mark.parametrize("special", [False, True])
def test_ids_offsets_and_texts_are_those_of_transformers(theirs, special):
    ours = from_transformers(theirs)
    for text in TEXTS:
        options = {"add_special_tokens": special, "return_offsets_mapping": True}
        found, expected = ours(text, **options), theirs(text, **options)
        assert found.input_ids == expected.input_ids
        assert found["offset_mapping"] == expected["offset_mapping"]
        assert ours.encode(text, add_special_tokens=special) == expected.input_ids
        for skip in (False, True):
            decoded = theirs.decode(expected.input_ids, skip_special_tokens=skip)
            assert ours.decode(found.input_ids, skip_special_tokens=skip) == decoded
    ids = list(range(min(len(theirs), 3000)))
    assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode(ids[3]) == theirs.decode(ids[3])
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.eos_token_id == theirs.eos_token_id
    assert tokenizer_fingerprint(ours) == tokenizer_fingerprint(theirs)


def outcome(tokenizer, chat, options):
    """The rendered chat, or the kind of error."""
    try:
        return tokenizer.apply_chat_template(chat, tokenize=False, **options)
    except (TemplateError, ValueError, TypeError) as error:
        return type(error)


@pytest.mark.parametrize("name", ["own", *TEMPLATES, "several"])
def test_chats_are_rendered_as_by_transformers(theirs, name, monkeypatch):
    templates = {"own": theirs.chat_template, "several": {"default": "a", "tool_use": "b"}}
    template = (TEMPLATES | templates)[name]
    monkeypatch.setattr(theirs, "chat_template", template)
    ours = from_transformers(theirs)
    assert ours.chat_template == template
    for chat, options in CHATS:
        assert outcome(ours, chat, options) == outcome(theirs, chat, options)


def test_a_class_with_its_own_way_is_left_to_transformers():
    class Own(PreTrainedTokenizerFast):
        def _decode(self, *given, **options):
            return super()._decode(*given, **options).upper()

    own = Own(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    assert from_transformers(own) is None


def changed(old, new):
    text = tiny_tokenizer().backend_tokenizer.to_str()
    assert old in text
    backend = type(tiny_tokenizer().backend_tokenizer).from_str(text.replace(old, new))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_another_token_or_another_way_of_cutting_makes_another_tokenizer(tmp_path):
    own = tokenizer_fingerprint(tiny_tokenizer())
    assert tokenizer_fingerprint(changed("<|unused1|>", "<|new|>")) != own
    assert (
        tokenizer_fingerprint(changed('"add_prefix_space":false', '"add_prefix_space":true')) != own
    )
    save_tiny(tmp_path, layers=1)
    assert tokenizer_fingerprint(read_tokenizer(str(tmp_path))) == own


def test_all_of_a_text_is_encoded_whatever_was_set_before():
    tokenizer = changed("<|unused1|>", "<|new|>")
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    texts = ["the rain in the plain", "wet"]
    found = [array.tolist() for array in batch_encoder(tokenizer)(texts)]
    assert found == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert len(found[0]) > 9
    assert vocabulary_size(tokenizer) == 128


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    tiny_network(layers=1).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_tokenizer(str(tmp_path))
