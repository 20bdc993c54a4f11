"""From files to rows: loss masks, packing, caching and held-out rows."""

import json

import numpy as np
import pytest
from tiny import IM_END, tiny_tokenizer

from graft.documents.overlap import Overlap
from graft.errors import InputError
from graft.train.dataset import DataOptions, prepare, rows_at
from graft.train.examples import Example, Reader, messages_of
from graft.train.packing import PADDING, pack


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(path)]


def said(example):
    """The tokens in the loss as text."""
    return tiny_tokenizer().decode(example.tokens[example.loss_mask].tolist())


CHAT = [
    {"role": "user", "content": "the the"},
    {"role": "assistant", "content": "and on"},
    {"role": "user", "content": "in"},
    {"role": "assistant", "content": "the the"},
]


@pytest.mark.parametrize(
    "names", [("messages", "role", "content"), ("conversations", "from", "value")]
)
def test_only_assistant_messages_of_chats_are_in_the_loss(tmp_path, names):
    field, role, content = names
    turns = [{role: turn["role"], content: turn["content"]} for turn in CHAT]
    paths = written(tmp_path / "chats.jsonl", {field: turns})
    [example] = Reader(tiny_tokenizer()).read(paths)
    assert said(example) == "and on<|im_end|>the the<|im_end|>"
    assert example.tokens[example.loss_mask][-1] == IM_END
    text = tiny_tokenizer().apply_chat_template(CHAT, tokenize=False)
    assert tiny_tokenizer().decode(example.tokens.tolist()) == text


def test_all_tokens_are_in_the_loss_if_requested(tmp_path):
    paths = written(tmp_path / "chats.jsonl", {"messages": CHAT})
    [example] = Reader(tiny_tokenizer(), all_tokens=True).read(paths)
    assert example.loss_mask.all()


def test_whole_texts_and_documents_are_in_the_loss(tmp_path):
    paths = written(tmp_path / "texts.jsonl", {"text": "the and"}, {"text": "on the"})
    (tmp_path / "note.txt").write_text("in the end")
    examples = list(Reader(tiny_tokenizer()).read([*paths, str(tmp_path / "note.txt")]))
    assert [said(example) for example in examples] == ["the and", "on the", "in the end"]
    assert all(example.loss_mask.all() for example in examples)


def test_the_pieces_of_a_long_document_are_complete(tmp_path, monkeypatch):
    monkeypatch.setattr("graft.train.examples.PIECE", 50)
    text = "".join(f"line {number} of the text\n" for number in range(20)) + "x" * 120
    (tmp_path / "long.txt").write_text(text)
    examples = list(Reader(tiny_tokenizer()).read([str(tmp_path / "long.txt")]))
    assert len(examples) > 9
    assert "".join(said(example) for example in examples) == text


def test_unusable_records_are_counted_or_errors(tmp_path):
    strange = {"messages": [{"role": "tool", "content": "x"}]}
    reader = Reader(tiny_tokenizer())
    paths = written(tmp_path / "a.jsonl", strange, {"messages": CHAT[:1]})
    assert not list(reader.read(paths))
    assert reader.unusable == 2
    with pytest.raises(InputError, match="no field 'messages'"):
        list(reader.read(written(tmp_path / "b.jsonl", {"question": "?"})))
    with pytest.raises(InputError, match="neither a text nor a conversation"):
        list(reader.read(written(tmp_path / "c.jsonl", {"text": 3})))


def test_turns_before_the_first_question_are_dropped():
    turns = [{"from": "gpt", "value": "hello"}, *CHAT]
    assert messages_of(turns) == CHAT
    assert messages_of(CHAT[1:2]) is None


def example(length, first=0):
    return Example(np.arange(first, first + length, dtype=np.int32), np.ones(length, bool))


def test_rows_hold_every_piece_once():
    lengths = [30, 9, 70, 12, 50, 8, 21]
    rows = pack([example(length, 100 * place) for place, length in enumerate(lengths)], 64)
    assert rows.tokens.shape == rows.documents.shape == rows.loss_mask.shape
    pieces = []
    for tokens, documents, mask in zip(rows.tokens, rows.documents, rows.loss_mask, strict=True):
        assert (mask == (documents != PADDING)).all()
        pieces += [tokens[documents == number] for number in range(documents.max() + 1)]
    found = sorted((int(piece[0]), len(piece)) for piece in pieces)
    expected = [(0, 30), (100, 9), (200, 64), (300, 12), (400, 50), (500, 8), (600, 21)]
    assert found == expected  # the 6 tokens that are left of 70 teach nothing
    assert len(rows) <= 5


def test_pieces_without_loss_are_dropped():
    silent = Example(np.arange(20, dtype=np.int32), np.zeros(20, bool))
    assert len(pack([silent], 64)) == 0


def test_rows_are_built_once(tmp_path, chats, monkeypatch):
    options = DataOptions(length=64, field="", all_tokens=False, held_out=0.1)
    first = prepare([str(chats)], tiny_tokenizer(), options, 128)
    monkeypatch.setattr("graft.train.dataset.pack", None)
    again = prepare([str(chats)], tiny_tokenizer(), options, 128)
    assert np.array_equal(first.train.tokens, again.train.tokens)
    assert len(first.held_out) > 0


def test_held_out_texts_are_not_in_the_training_rows(tmp_path):
    paths = written(tmp_path / "t.jsonl", *({"text": f"number {n} of the text"} for n in range(40)))
    options = DataOptions(length=32, field="", all_tokens=False, held_out=0.25)
    dataset = prepare(paths, tiny_tokenizer(), options, 128)

    def texts(rows):
        tokenizer = tiny_tokenizer()
        return {
            tokenizer.decode(tokens[documents == number].tolist())
            for tokens, documents in zip(rows.tokens, rows.documents, strict=True)
            for number in range(documents.max() + 1)
        }

    assert len(texts(dataset.held_out)) == 10
    assert len(texts(dataset.train)) == 30
    assert not texts(dataset.held_out) & texts(dataset.train)


def test_the_draft_vocabulary_is_the_most_frequent_ids(chats):
    options = DataOptions(length=64, field="", all_tokens=False, held_out=0.1)
    dataset = prepare([str(chats)], tiny_tokenizer(), options, 128)
    ids = dataset.draft_ids(10)
    rest = np.delete(dataset.frequencies, ids)
    assert dataset.frequencies[ids].min() >= rest.max()
    assert (np.diff(ids) > 0).all()  # as others' tables expect them
    assert sorted(dataset.draft_ids(0)) == list(range(128))


def test_every_epoch_is_a_new_permutation_of_all_rows():
    epochs = [rows_at(7 * epoch, 7, 7, seed=1) for epoch in range(2)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    across = rows_at(5, 4, 7, seed=1)
    assert across.tolist() == [*epochs[0][5:], *epochs[1][:2]]
    assert len(rows_at(0, 30, 7, seed=1)) == 30


def test_excluded_texts_are_not_in_the_rows(tmp_path):
    words = [f"word{n}" for n in range(40)]
    test = tmp_path / "test.jsonl"
    written(test, {"id": 7, "turns": [" ".join(words)]}, {"turns": ["short"]})
    overlap = Overlap.with_files([str(test)])
    assert overlap.has("Before. " + ", ".join(words[5:18]).upper() + " after")
    assert not overlap.has(" ".join(words[5:17]) + " and on")
    assert not overlap.has("short")
    paths = written(tmp_path / "t.jsonl", {"text": " ".join(words[:20])}, {"text": "the end"})
    reader = Reader(tiny_tokenizer(), overlap=overlap)
    assert [said(example) for example in reader.read(paths)] == ["the end"]
    assert reader.overlapping == 1
