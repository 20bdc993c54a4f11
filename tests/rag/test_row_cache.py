"""Rows of passages in memory and on disk: limits and damage."""

import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_engine, tiny_network

from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.home import TEMPORARY
from graft.models.load import build_forward
from graft.rag.document_cache import DocumentCache
from graft.rag.reuse import Reuse
from graft.rag.row_cache import MIN_FREE_BYTES, Entry, RowCache, entry_name, to_storage
from graft.sampling import SamplingParams

SIZE = 2 * 3 * 2 * 10 * 4 * 4  # bytes of an entry
MANY = 1 << 20


def entry(number: int, *, exact: bool = True) -> Entry:
    tokens = np.arange(number, number + 10, dtype=np.int32)
    rows = torch.full((2, 3, 2, 10, 4), float(number))
    return Entry(entry_name("model", "before", tokens), tokens, rows, 7, exact=exact)


def found(kept: RowCache, number: int) -> Entry | None:
    wanted = entry(number)
    return kept.get(wanted.name, wanted.tokens, 7)


def files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.safetensors"))


def test_least_recently_used_is_evicted():
    kept = RowCache("model", max_bytes=2 * SIZE)
    kept.put(entry(1))
    kept.put(entry(2))
    assert found(kept, 1)
    kept.put(entry(3))
    assert found(kept, 1)
    assert not found(kept, 2)
    assert (kept.bytes, len(kept), kept.evicted) == (2 * SIZE, 2, 1)


def test_evicted_rows_are_found_on_disk(tmp_path):
    kept = RowCache("model", max_bytes=SIZE, folder=tmp_path, disk_bytes=MANY)
    for number in range(3):
        kept.put(entry(number))
    again = found(kept, 0)
    assert again.first == 7
    assert torch.equal(again.rows, entry(0).rows)
    assert kept.bytes <= SIZE
    assert kept.disk_bytes == sum(file.stat().st_size for file in files(tmp_path))


def test_flushed_rows_are_found_by_another_process(tmp_path):
    kept = RowCache("model", max_bytes=MANY, folder=tmp_path, disk_bytes=MANY)
    kept.put(entry(1))
    assert not files(tmp_path)
    kept.flush()
    fresh = RowCache("model", max_bytes=MANY, folder=tmp_path, disk_bytes=MANY)
    assert torch.equal(found(fresh, 1).rows, entry(1).rows)
    assert not found(RowCache("other", max_bytes=MANY, folder=tmp_path), 1)


def test_inexact_rows_are_not_written_to_disk(tmp_path):
    kept = RowCache("model", max_bytes=0, folder=tmp_path, disk_bytes=MANY)
    kept.put(entry(1, exact=False))
    assert not files(tmp_path)
    assert kept.bytes == 0


def test_folder_stays_within_its_size(tmp_path):
    limit = 5 * SIZE
    kept = RowCache("model", max_bytes=0, folder=tmp_path, disk_bytes=limit)
    for number in range(10):
        kept.put(entry(number))
        assert kept.disk_bytes <= limit
    assert files(tmp_path)
    small = RowCache("model", max_bytes=0, folder=tmp_path / "small", disk_bytes=SIZE - 1)
    small.put(entry(1))
    assert not files(tmp_path / "small")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _rename(path: Path) -> None:
    """Valid rows of another model under this name."""
    save_file(load_file(path), path, {"key": "other", "name": path.stem, "text": "", "rows": ""})


def _no_header(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("damage", [_flip, _cut, _empty, _rename, _no_header])
def test_damaged_files_are_a_miss_and_are_deleted(tmp_path, damage):
    kept = RowCache("model", max_bytes=0, folder=tmp_path, disk_bytes=MANY)
    kept.put(entry(1))
    (path,) = files(tmp_path)
    damage(path)
    assert found(kept, 1) is None
    assert not path.exists()


def test_a_file_with_another_text_under_the_name_is_a_miss(tmp_path):
    kept = RowCache("model", max_bytes=0, folder=tmp_path, disk_bytes=MANY)
    kept.put(entry(1))
    assert kept.get(entry(1).name, np.arange(10, dtype=np.int32), 7) is None


def test_unwritable_folder_is_logged(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    kept = RowCache("model", max_bytes=0, folder=blocked, disk_bytes=MANY)
    kept.put(entry(1))
    assert "cannot be written to disk" in caplog.text
    assert found(kept, 1) is None


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
import numpy as np
import torch
from graft.rag import row_cache
from graft.rag.row_cache import Entry, entry_name

{entry}
def half(tensors, file, about):
    open(file, "wb").write(b"half of it")
    os._exit(9)

row_cache.save_file = half
kept = row_cache.RowCache("model", max_bytes=0, folder=Path({folder!r}), disk_bytes=1 << 20)
kept.put(entry(1))
"""


def test_killed_in_the_middle_of_a_write(tmp_path):
    folder, root = tmp_path / "rows", str(Path(__file__).parents[2])
    script = KILLED.format(root=root, entry=inspect.getsource(entry), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 9, done.stderr
    leftovers = list(folder.rglob(f"{TEMPORARY}*"))
    assert leftovers
    assert not files(folder)
    for leftover in leftovers:
        os.utime(leftover, (0, 0))  # long ago
    kept = RowCache("model", max_bytes=0, folder=folder, disk_bytes=MANY)
    assert found(kept, 1) is None
    kept.put(entry(1))
    assert torch.equal(found(kept, 1).rows, entry(1).rows)
    assert not list(folder.rglob(f"{TEMPORARY}*"))


def test_many_threads_keep_the_count(tmp_path):
    kept = RowCache("model", max_bytes=3 * SIZE, folder=tmp_path, disk_bytes=MANY)
    wrong = []

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        for number in random.integers(0, 8, 30).tolist():
            kept.put(entry(number))
            if (again := found(kept, number)) and again.rows[0, 0, 0, 0, 0] != number:
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kept.bytes == len(kept) * SIZE <= 3 * SIZE


def test_names_differ_with_everything_that_rows_depend_on():
    tokens = np.arange(5, dtype=np.int32)
    names = {
        entry_name("model", "before", tokens),
        entry_name("other", "before", tokens),
        entry_name("model", "after", tokens),
        entry_name("model", "before", tokens + 1),
        entry_name("model", "before", tokens[:-1]),
    }
    assert len(names) == 5


PARTS = [("head", list(range(10, 30)), ""), ("passage", list(range(30, 60)), "1")]
PARTS += [("passage", list(range(60, 90)), "2"), ("question", [5, 6, 7], "")]


def asked(engine, folder: Path, mode: str = "cics"):
    """Prepare and generate a prompt, and write its rows to disk."""
    cache = DocumentCache(engine, Reuse(mode, "all"), folder=folder)
    prepared = cache.prepare(PARTS)
    params = SamplingParams(max_tokens=4)
    result = engine.generate(PreparedRequest(Request(prepared.tokens, params), prepared.rows))
    cache.end()
    return prepared, result


def hits(prepared) -> list[int]:
    return [part.exact + part.approximate for part in prepared.parts[:-1]]


def test_next_process_reuses_the_rows_on_disk(tmp_path):
    _, first = asked(tiny_engine(), tmp_path)
    prepared, second = asked(tiny_engine(), tmp_path)
    assert hits(prepared) == [20, 30, 30]
    assert second.token_ids == first.token_ids


def test_other_weights_dtypes_forwards_and_rotations_find_nothing(tmp_path):
    asked(tiny_engine(), tmp_path)
    others = [
        tiny_engine(tiny_network(rope_parameters={"rope_type": "default", "rope_theta": 99.0})),
        tiny_engine(forward="lean"),
        _renamed(tiny_engine(), dtype="bf16"),
        _renamed(tiny_engine(), fingerprint="other"),
    ]
    for engine in others:
        assert hits(asked(engine, tmp_path)[0]) == [0, 0, 0]


def _renamed(engine, **changes):
    """An engine with another dtype or fingerprint."""
    from dataclasses import replace

    if "fingerprint" in changes:
        changes = {"checkpoint": replace(engine.loaded.checkpoint, **changes)}
    engine.loaded = replace(engine.loaded, **changes)
    return engine


def test_sixteen_bit_rows_keep_their_dtype(tmp_path):
    forward, _ = build_forward(tiny_network(), name="tiny", dtype=torch.bfloat16, kind="lean")
    rows = forward.storage.kv.new_zeros(2, 3, 2, 10, 4)
    tokens = entry(1).tokens
    kept = RowCache("model", max_bytes=0, folder=tmp_path, disk_bytes=MANY)
    kept.put(Entry(entry(1).name, tokens, rows, 7, exact=True))
    assert found(kept, 1).rows.dtype == torch.bfloat16


class OnGpu:
    """A fake of rows on a GPU."""

    is_cuda, device = True, "cuda:0"

    def cpu(self):
        return "on the host"


@pytest.mark.parametrize(("free", "stays"), [(MIN_FREE_BYTES, True), (MIN_FREE_BYTES - 1, False)])
def test_rows_stay_on_a_gpu_with_free_memory(free, stays, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 8 * MIN_FREE_BYTES))
    rows = OnGpu()
    assert to_storage(rows) == (rows if stays else "on the host")
