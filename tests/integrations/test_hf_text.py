"""Streamers, stop strings and documents through the drop-in and through `graft.generate`."""

import threading

import pytest
from hf_cases import PAD, SHAPES, drafted
from tiny import END, tiny_tokenizer
from transformers import GenerationConfig, TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import graft
from graft.errors import InputError
from graft.integrations import hf

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorder(BaseStreamer):
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(value.tolist())

    def end(self):
        self.calls.append("end")


@pytest.mark.parametrize("way", ["model.generate", "graft.generate"])
def test_a_streamer_gets_the_prompt_every_token_and_the_end(unchanged, way):
    theirs, ours = Recorder(), Recorder()
    options = {**SHAPES["one"], "max_new_tokens": 30, "do_sample": False}
    unchanged.generate(**options, streamer=theirs)
    if way == "model.generate":
        drafted(unchanged, **options, streamer=ours)
    else:
        graft.generate(unchanged, draft="copy", **options, streamer=ours)
    assert ours.calls == theirs.calls
    assert hf.last_stats(unchanged)[0].tokens_per_step > 1


def test_text_streamers_show_the_same_text(unchanged, capsys):
    options = {**SHAPES["one"], "max_new_tokens": 30, "do_sample": False}
    unchanged.generate(**options, streamer=TextStreamer(tiny_tokenizer()))
    expected = capsys.readouterr().out
    drafted(unchanged, **options, streamer=TextStreamer(tiny_tokenizer()))
    assert capsys.readouterr().out == expected != ""
    pieces = TextIteratorStreamer(tiny_tokenizer(), timeout=60)
    thread = threading.Thread(
        target=drafted, args=(unchanged,), kwargs={**options, "streamer": pieces}
    )
    thread.start()
    assert "".join(pieces).strip() == expected.strip()
    thread.join()


def test_a_streamer_for_a_batch_is_an_error_as_in_transformers(unchanged):
    options = {**SHAPES["ragged"], "max_new_tokens": 5}
    with pytest.raises(ValueError, match="batch size 1"):
        drafted(unchanged, **options, streamer=TextStreamer(tiny_tokenizer()))
    with pytest.raises(InputError, match="one prompt at a time"):
        drafted(unchanged, **options, streamer=Recorder())


@pytest.mark.parametrize("where", ["option", "config"])
def test_stop_strings_end_where_transformers_ends(unchanged, where):
    settings = {"max_new_tokens": 60, "do_sample": False}
    rows = unchanged.generate(**SHAPES["ragged"], **settings)[
        :, SHAPES["ragged"]["input_ids"].shape[1] :
    ]
    strings = [tiny_tokenizer().decode([row[20]]) for row in rows]  # something every row comes to
    if where == "option":
        settings["stop_strings"] = strings
    else:
        config = GenerationConfig(
            stop_strings=strings, eos_token_id=END, pad_token_id=PAD, **settings
        )
        settings = {"generation_config": config}
    told = {"tokenizer": tiny_tokenizer(), **SHAPES["ragged"]}
    expected = unchanged.generate(**told, **settings)
    assert expected.shape[1] <= 21 + SHAPES["ragged"]["input_ids"].shape[1]
    assert graft.generate(unchanged, **told, **settings).tolist() == expected.tolist()
    if where == "config":
        assert settings["generation_config"].stop_strings == strings


def test_stop_strings_of_the_models_config_are_an_error(model):
    model.generation_config.stop_strings = ["a"]
    with pytest.raises(InputError, match="stop_strings cannot be used"):
        graft.generate(model, **SHAPES["one"], tokenizer=tiny_tokenizer())


def test_documents_are_drafted_from_as_ids_or_with_a_tokenizer_as_text(unchanged):
    options = {**SHAPES["one"], "max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    expected = unchanged.generate(**options)
    answer = expected[0, SHAPES["one"]["input_ids"].shape[1] :]
    for document in (answer, answer.tolist()):
        assert drafted(unchanged, **options, documents=[document]).tolist() == expected.tolist()
        with_it = hf.last_stats(unchanged)[0]
        drafted(unchanged, **options)
        assert with_it.steps < hf.last_stats(unchanged)[0].steps
    text = tiny_tokenizer().decode(answer)
    found = graft.generate(unchanged, options, documents=[text], tokenizer=tiny_tokenizer())
    assert found.tolist() == expected.tolist()
    with pytest.raises(InputError, match="tokenizer"):
        drafted(unchanged, **options, documents=[text])
    with pytest.raises(InputError, match="tokenizer"):
        graft.generate(unchanged, options, documents=[text])


def test_an_unknown_draft_is_an_error(unchanged):
    with pytest.raises(InputError, match="unknown draft 'magic'; choose one of"):
        drafted(unchanged, "magic", **SHAPES["one"], max_new_tokens=3)
