"""Texts of many files: records, whole documents, and unreadable files."""

import gzip
import json
import logging

import pytest

from graft.documents.records import read_texts
from graft.errors import InputError


def test_records_and_documents_come_in_the_order_named(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"text": "one"}\n\n{"text": ["two", " ", "three"]}\n')
    (tmp_path / "b.md").write_text("four\n")
    (tmp_path / "c.jsonl").write_text('{"text": {"value": "five"}}\n')
    names = ("c.jsonl", "a.ndjson", "b.md")
    texts = list(read_texts(tmp_path / name for name in names))
    assert texts == ["five", "one", "two", "three", "four\n"]


def test_records_are_read_lazily(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\nnot JSON\n')
    texts = read_texts([tmp_path / "a.jsonl"])
    assert next(texts) == "one"
    with pytest.raises(InputError, match="line 2"):
        next(texts)


def test_other_files_of_a_folder_are_skipped_with_one_warning(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"body": "two"}\n')
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    with caplog.at_level(logging.WARNING):
        assert list(read_texts([tmp_path])) == ["one"]
    [record] = caplog.records
    assert "skipped 2 files" in record.getMessage()


def test_a_json_array_of_records_is_read_by_its_field(tmp_path):
    turns = ([{"value": "one"}, {"value": "two"}], "é")
    array = "\ufeff " + json.dumps([{"talk": {"turns": each}} for each in turns])
    (tmp_path / "a.json").write_text(array, encoding="utf-8")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(array.encode()))
    for name in ("a.json", "b.json.gz"):
        assert list(read_texts([tmp_path / name], "talk.turns")) == ["one", "two", "é"]
    with pytest.raises(InputError, match="record 1 has no field 'text': there are talk"):
        list(read_texts([tmp_path / "a.json"]))


@pytest.mark.parametrize("content", ['{"name": "one"}', "[1, 2, 3]", '["one", "two"]', "[]"])
def test_other_json_is_a_document_like_any(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    assert list(read_texts([tmp_path / "a.json"])) == [content]


@pytest.mark.parametrize("content", ['[{"text": "one"}, {"text":', '[{"text": 3}]', "[" * 99_999])
def test_unreadable_array_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match="a.json") as refused:
        list(read_texts([tmp_path / "a.json"]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl.gz", b"\x1f\x8bnot gzip"), ("a.parquet", b"not parquet")]
)
def test_damaged_files_are_named(tmp_path, name, content):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        list(read_texts([tmp_path / name]))


def test_missing_file_is_named(tmp_path):
    for name in ("a.jsonl", "a.json", "a.txt", "a.parquet"):
        with pytest.raises(InputError, match=name):
            list(read_texts([tmp_path / name]))
