"""Kernels on a GPU: graphs, events, memory."""

import pytest
from made_up_rows import Recorder

from benchmarks.kernels.run import run
from benchmarks.kernels.settings import KernelOptions
from graft.bench.result_file import open_results


@pytest.mark.gpu
def test_a_small_decoder_on_a_gpu():
    options = KernelOptions(
        shape="8/2/64/2/256/512/1000",
        contexts=(300, 1000),
        nodes=(1, 9),
        dtype="bf16",
        device="cuda",
        repeats=3,
    )
    with open_results(None) as file:
        run(options, file, Recorder())
    rows = [row for row in file.results.rows if row["part"] != "memory"]
    for row in rows:
        assert "seconds" in row or row["error"], row
        if row["ours"]:
            assert row["seconds"] > 0, row
            assert row["part"] == "step" or row["max_error"] < 0.05
    flash = [row for row in rows if row["variant"] == "sdpa flash, no mask"]
    assert all("seconds" in row for row in flash)
    assert all(row["device_seconds"] for row in rows if row["part"] == "step")
    [memory] = [row for row in file.results.rows if row["part"] == "memory"]
    assert memory["rest_bytes"] > 0
