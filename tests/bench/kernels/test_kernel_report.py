import sys

import pytest
from made_up_figures import figure, some_figures

from graft.bench.kernels.plot import plot
from graft.bench.kernels.records import Figures
from graft.bench.kernels.report import as_dict, as_markdown, heading, sheets
from graft.errors import InputError


def cells(sheet, place):
    return dict(zip(sheet.columns, sheet.rows[place], strict=True))


def test_attention_stands_beside_its_floor_and_rivals():
    attention = sheets(some_figures())[0]
    row = cells(attention, 0)
    assert (row["context"], row["nodes"]) == ("4,096", "1")
    assert (row["floor"], row["triton"], row["sdpa cudnn, mask"]) == ("0.0500", "0.100", "3.000")
    assert (row["triton / floor"], row["error"]) == ("2.00", "2.0e-03")
    assert cells(attention, 1)["sdpa cudnn, mask"] == "–"
    assert attention.notes == ["sdpa cudnn, mask: no such kernel (context/nodes 4096/8)"]


def test_a_step_says_how_much_of_it_is_attention():
    steps = sheets(some_figures())[1]
    assert "random weights" in steps.title
    assert "16 of 32 layers" in steps.title
    row = cells(steps, 1)
    assert (row["graphs"], row["on the device"], row["eager"]) == ("5.000", "4.800", "30.0")
    assert (row["graphs / floor"], row["x plain"]) == ("5.00", "1.25")
    assert (row["attention"], row["share"], row["the rest"]) == ("3.200", "64%", "1.800")
    assert cells(steps, 0)["eager"] == "–"


def test_memory_names_the_rest():
    memory = sheets(some_figures())[2]
    row = cells(memory, 0)
    assert (row["weights"], row["cache"], row["rest"]) == ("16,384", "512", "100")
    assert "activations" in memory.notes[0]


def test_what_was_not_measured_has_no_table():
    found = some_figures()
    found.memory = None
    found.figures = {key: each for key, each in found.figures.items() if each.part == "step"}
    [steps] = sheets(found)
    assert cells(steps, 0)["share"] == "–"


def test_heading_markdown_and_json():
    found = some_figures()
    assert "a GPU: copies 4,000 GB/s, multiplies 700 TFLOP/s" in heading(found)
    text = as_markdown(found)
    assert "| 4,096 | 8 | 0.0500 | 0.200 | – | 4.00 | 4.0e-03 |" in text
    assert as_dict(found)["figures"][0]["what"] == "triton"


def test_a_plot_is_a_png_with_a_panel_per_context(tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    found, widths = some_figures(), []
    for context in (None, 32768, 131072):
        if context:
            more = figure("step", "graphs", 1, 0.01, ours=True, context=context)
            found.figures[more.key] = more
        plot(found, tmp_path / "plot.png")
        with Image.open(tmp_path / "plot.png") as image:
            image.verify()
            widths.append(image.width)
    assert widths[2] > widths[0]


def test_a_plot_without_figures_or_matplotlib_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="nothing to draw"):
        plot(Figures(some_figures().sessions), tmp_path / "plot.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="graft bench kernels --from FILE.jsonl --plot FILE.png"):
        plot(some_figures(), tmp_path / "plot.png")
