"""The Python snippets of docs/quickstart.md, and its notebook, run as they are written."""

import json
import re
from pathlib import Path

import pytest
from serving import serving

import graft

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SERVED = [each for each in SNIPPETS if "8000" in each]


@pytest.fixture(scope="module")
def server(loaded_smollm2):
    with serving(loaded_smollm2) as running:
        yield running


def test_the_engines_snippet_runs(loaded_smollm2, monkeypatch, capsys):
    [snippet] = [each for each in SNIPPETS if each not in SERVED]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(graft, "load", lambda name: loaded_smollm2)
    exec(compile(snippet, "quickstart.md", "exec"), {})
    assert len(capsys.readouterr().out.split()) > 20


@pytest.mark.parametrize("snippet", SERVED, ids=["openai", "langchain", "llama_index"])
def test_a_clients_snippet_runs(server, snippet, capsys):
    exec(compile(snippet.replace("http://127.0.0.1:8000", server.url), "quickstart.md", "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_cells_of_the_notebook_run_in_order(loaded_smollm2, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(graft, "load", lambda name: loaded_smollm2)
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    names, printed = {}, []
    for cell in cells:
        exec(compile("".join(cell["source"]), "quickstart.ipynb", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert all(len(text.split()) > 2 for text in printed)
    assert "same text: True" in printed[2]
    shown = ["".join(cell["outputs"][0]["text"]) for cell in cells]
    assert shown[0] == printed[0]
    assert [len(text.splitlines()) for text in shown[2:4]] == [
        len(text.splitlines()) for text in printed[2:4]
    ]


def test_the_memory_table_follows_from_the_models_shapes():
    shapes = {  # parameters in billions, layers, KV heads, head size
        "Qwen2.5-1.5B": (1.54, 28, 2, 128),
        "Qwen2.5-3B": (3.09, 36, 2, 128),
        "Qwen2.5-7B": (7.62, 28, 4, 128),
        "Llama-3.1-8B": (8.03, 32, 8, 128),
        "Qwen2.5-14B": (14.77, 48, 8, 128),
        "Qwen2.5-32B": (32.76, 64, 8, 128),
    }
    rows = re.findall(r"^\| (\S+B) \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", PAGE, re.M)
    assert [row[0] for row in rows] == list(shapes)
    for name, *given in rows:
        billions, layers, heads, size = shapes[name]
        token = 4 * layers * heads * size / 1e9
        for shown, exact in zip(given, (2 * billions, 8192 * token, 32768 * token), strict=True):
            assert float(shown) == pytest.approx(exact, abs=0.051)
