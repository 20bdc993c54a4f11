import gzip
import json

import pytest

from benchmarks.suites.source import Source, text
from graft.errors import InputError

SOURCE = Source("poems", "Basho", ("haiku.json", "haiku-v2.json"), "a haiku (verse)")
ROWS = [{"verse": "old pond"}, {"verse": "a frog\u2028leaps"}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n"


def verse(row):
    return text(row, "verse")


@pytest.mark.parametrize("name", ["haiku.json", "haiku-v2.json", "haiku.json.gz"])
@pytest.mark.parametrize("whole", [ROWS, {"data": ROWS}])
def test_a_list_is_read_from_a_folder_or_a_file_zipped_or_not(tmp_path, name, whole):
    content = json.dumps(whole).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    for data in (tmp_path, tmp_path / name):
        assert SOURCE.entries(data, verse) == ["old pond", "a frog\u2028leaps"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_line_ends_with_a_newline_and_nothing_else(tmp_path, pack):
    (tmp_path / "any").write_bytes(pack(LINES.encode()))
    assert SOURCE.lines(tmp_path / "any", verse) == ["old pond", "a frog\u2028leaps"]


@pytest.mark.parametrize("row", ["{", "[]", "3", "null", "{}", '{"verse": 3}', '{"verse": " "}'])
def test_a_row_of_something_else_is_named_by_its_place(tmp_path, row):
    (tmp_path / "lines").write_text(f'{{"verse": "old pond"}}\n\n{row}\n')
    with pytest.raises(InputError, match=r"lines, line 3 is not a haiku \(verse\)$"):
        SOURCE.lines(tmp_path / "lines", verse)
    if row != "{":
        (tmp_path / "list").write_text(f'[{{"verse": "old pond"}}, {row}]')
        with pytest.raises(InputError, match=r"list, entry 2 is not a haiku \(verse\)$"):
            SOURCE.entries(tmp_path / "list", verse)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is not JSON"),
        (b"[]", "is empty"),
        (b"[", "is not JSON"),
        (b"3", "holds no list"),
        (b'{"rows": []}', "holds no list"),
        (b"\xff\xfe", "is damaged"),
        (gzip.compress(b"[1, 2, 3]", mtime=0)[:-12], "is damaged"),
        (gzip.compress(b"[1, 2, 3]", mtime=0)[:4], "is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_to_be_downloaded_again(tmp_path, content, line):
    (tmp_path / "haiku.json").write_bytes(content)
    with pytest.raises(InputError) as refused:
        SOURCE.entries(tmp_path, verse)
    assert f"haiku.json {line}" in str(refused.value)
    assert "; download Basho's haiku.json or haiku-v2.json again" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_an_error_that_explains_data(tmp_path):
    for data in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="cannot be read; --data is the folder with haiku"):
            SOURCE.lines(data, verse)
    with pytest.raises(InputError, match="poems needs --data: the folder with Basho's haiku.json"):
        SOURCE.lines(None, verse)
