"""Result files: one schema, resumed line by line, never mixed."""

import json

import pytest

from graft.bench.result_file import (
    ResultFile,
    new_header,
    open_results,
    pack_tokens,
    read_results,
    unpack_tokens,
)
from graft.errors import InputError


def written(path, *rows, **settings):
    with open_results(path) as file:
        file.begin(new_header("serve", {"model": "tiny", **settings}))
        for row in rows:
            file.row(row)
    return path


def test_header_and_rows_are_read_back(tmp_path):
    path = written(tmp_path / "a.jsonl", {"concurrency": 1, "seconds": 2.0, "left_out": None})
    results = read_results(path)
    assert results.kind == "serve"
    assert results.header.key == ["concurrency"]
    assert results.header.settings == {"model": "tiny"}
    assert results.rows == [{"concurrency": 1, "seconds": 2.0, "session": 0}]


def test_last_row_with_a_key_counts_and_failed_ones_are_measured_again(tmp_path):
    path = written(tmp_path / "a.jsonl", {"concurrency": 1, "error": "gone"}, {"concurrency": 2})
    results = read_results(path)
    assert results.has({"concurrency": 2})
    assert not results.has({"concurrency": 1})
    written(path, {"concurrency": 1, "seconds": 1.0})
    again = read_results(path)
    assert [row["session"] for row in again.rows] == [1, 0]
    assert again.has({"concurrency": 1})


def test_partial_last_line_is_removed_on_resume(tmp_path):
    path = written(tmp_path / "a.jsonl", {"concurrency": 1})
    path.write_text(path.read_text() + '{"record": "row", "concurr')
    assert len(read_results(path).rows) == 1
    written(path, {"concurrency": 2})
    assert len(read_results(path).rows) == 2


def test_settings_that_change_times_cannot_be_mixed(tmp_path):
    path = written(tmp_path / "a.jsonl", {"concurrency": 1}, dtype="fp32", limit=2)
    written(path, {"concurrency": 2}, dtype="fp32", limit=3)
    with pytest.raises(InputError, match="dtype fp32, not bf16"):
        written(path, {"concurrency": 3}, dtype="bf16", limit=3)


def test_one_process_writes_at_a_time(tmp_path):
    with (
        open_results(tmp_path / "a.jsonl"),
        pytest.raises(InputError, match="another run"),
        open_results(tmp_path / "a.jsonl"),
    ):
        pass
    assert not (tmp_path / "a.jsonl").exists()  # nothing was written


@pytest.mark.parametrize("line", ["[]", '{"record": "row"}', '{"record": "other"}', "no JSON"])
def test_other_files_are_refused_by_line(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="line 1"):
        read_results(path)


def test_unknown_format_is_refused(tmp_path):
    path = written(tmp_path / "a.jsonl")
    header = json.loads(path.read_text())
    path.write_text(json.dumps(header | {"format": 1}) + "\n")
    with pytest.raises(InputError, match="format 2"):
        read_results(path)


def test_results_without_a_path_stay_in_memory():
    file = ResultFile()
    file.begin(new_header("index", {}))
    file.row({"index": "ngram", "tokens": 4, "lookup_us": 1.5})
    assert file.results.has({"index": "ngram", "tokens": 4})


def test_packed_tokens_are_unpacked():
    assert unpack_tokens(pack_tokens([1, 50_000, 3])) == [1, 50_000, 3]
