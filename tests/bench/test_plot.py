import sys

import pytest
from made_up_answers import answer, pair, results

from graft.bench.plot import plot
from graft.bench.report import report
from graft.errors import InputError


def test_a_plot_is_a_png_with_a_panel_per_cell(tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    both = answer(question_ids=[1, 3], batch=2, category="mixed", output="a")
    one, two = report(results(*pair(1), *pair(3))), report(results(*pair(1), *pair(3), both))
    heights = []
    for told in (one, two):
        plot(told, tmp_path / "plot.png")
        with Image.open(tmp_path / "plot.png") as image:
            image.verify()
            assert image.format == "PNG"
            heights.append(image.height)
    assert heights[1] > 2 * heights[0]  # another cell, and speed by batch size
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".png"] == ["plot.png"]


def test_several_contexts_have_a_panel_of_tokens_per_step(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *given, **how: drawn.append(self) or save(self, *given, **how),
    )
    cut = [*pair(1, context=512), *pair(1, context=1024), *pair(3, context=512)]
    plot(report(results(*cut)), tmp_path / "plot.png")
    plot(report(results(*pair(1, context=512))), tmp_path / "one.png")
    assert [len(figure.axes) for figure in drawn] == [3, 1]
    panel = drawn[0].axes[-1]
    assert (panel.get_xscale(), panel.get_ylabel()) == ("log", "tokens per step")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["512", "1K"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
    assert lines == {"plain": [[512, 1], [1024, 1]], "auto": [[512, 2], [1024, 2]]}


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'graftlm\[bench\]'"):
        plot(report(results(*pair(1))), tmp_path / "plot.png")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another --plot"):
        plot(report(results(*pair(1))), tmp_path / "file" / "plot.png")
