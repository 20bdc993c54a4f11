"""The same on a GPU: graphs, events, memory."""

import pytest
from made_up_answers import Recorder

from benchmarks.kernels.records import Figures, Journal
from benchmarks.kernels.run import run
from benchmarks.kernels.settings import Asked


@pytest.mark.gpu
def test_a_small_decoder_on_a_gpu():
    asked = Asked(
        shape="8/2/64/2/256/512/1000",
        contexts="300,1000",
        nodes="1,9",
        dtype="bf16",
        device="cuda",
        repeats=3,
    )
    journal = Journal(Figures())
    run(asked.settings(), journal, Recorder())
    figures = journal.figures.figures.values()
    for figure in figures:
        assert figure.seconds is not None or figure.note, figure
        if figure.ours:
            assert figure.seconds > 0, figure
            assert figure.part == "step" or figure.error < 0.05
    flash = [figure for figure in figures if figure.what == "sdpa flash, no mask"]
    assert all(figure.seconds for figure in flash)
    assert all(figure.device_seconds for figure in figures if figure.part == "step")
    assert journal.figures.memory.rest > 0
