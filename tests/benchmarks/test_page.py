"""The page of results: one file, all suites, no external files, readable without pictures."""

import re
from html.parser import HTMLParser

import pytest
from made_up_rows import pair, results

from benchmarks.__main__ import main
from benchmarks.page.html import page
from benchmarks.report import Figure, Report, Table, report_of
from graft.bench.result_file import new_header, open_results

pytest.importorskip("matplotlib")
pytest.importorskip("markdown_it")
DRAFTED = {
    "drafted": 20,
    "drafted_by_source": {"prompt": 12, "output": 8},
    "accepted_by_position": {"1": 4, "2": 1},
}
VOID = {"meta", "br"}


class Tree(HTMLParser):
    """Every tag with its attributes; fails where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report():
    rows = []
    for number in (1, 3):
        for context in (512, 1024):
            rows += pair(number, f"task{number}", context=context, more=DRAFTED)
    return report_of(results(*rows), "<first> & one")


@pytest.fixture(scope="module")
def shown(report):
    return page([report, Report("two", "text", [])])


def test_figures_are_drawn_for_what_is_measured(report):
    words = {figure.title: figure.in_words() for figure in report.figures}
    assert list(words) == [
        "decoding speed-up, s, greedy, context 512",
        "decoding speed-up, s, greedy, context 1K",
        "tokens per step by context",
        "acceptance by position",
    ]
    assert "auto: 0.8 at 1, 0.2 at 2" in words["acceptance by position"]
    assert "2 at task1" in words["decoding speed-up, s, greedy, context 512"]


def test_the_page_has_no_external_files(shown):
    tree = Tree(shown)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tree.found}
    for _, given in tree.found:
        for name in ("href", "src", "xlink:href"):
            assert (given.get(name) or "#").startswith("#")
    assert "@import" not in shown
    assert not re.search(r"url\((?!#)", shown)


def test_figures_and_tables_have_names_and_ids_are_unique(report, shown):
    tree = Tree(shown)
    ids = [given["id"] for _, given in tree.found if "id" in given]
    assert len(ids) == len(set(ids))
    named = [given for tag, given in tree.found if tag == "figure" or given.get("role")]
    images = [each for each in named if each.get("role") == "img"]
    assert len(images) == len(report.figures)
    for given in named:
        assert all(name in ids for name in given["aria-labelledby"].split())
    assert all(given.get("scope") == "col" for tag, given in tree.found if tag == "th")
    assert ("html", {"lang": "en"}) in tree.found


def test_titles_are_text_not_markup(shown):
    assert "&lt;first&gt; &amp; one" in shown
    figure = Figure("a <b>", "x", "y", {"<i>": [(1, 2), (2, 3)]})
    table = Table("t", ["a"], [["<script>x</script>"]])
    text = page([Report("s", "h", [table], [figure])])
    assert "<script>" not in text
    assert "<i>" not in text


def test_light_and_dark_follow_the_reader(shown):
    assert "prefers-color-scheme: dark" in shown
    assert "currentColor" in shown
    assert "#000000" not in shown


def test_page_and_report_of_files_of_any_kind(tmp_path, capsys):
    index, other = tmp_path / "index.jsonl", tmp_path / "other.jsonl"
    with open_results(index) as file:
        file.begin(new_header("index", {"text": "made up", "repeats": 1}))
        times = {"extend_us": 1.0, "lookup_us": 2.0, "lookup_p99_us": 3.0, "nodes": 4.0}
        for size in (8192, 32768):
            file.row({"index": "ngram", "tokens": size, "build_ms": 5.0, **times})
    with open_results(other) as file:
        file.begin(new_header("train", {}))
        file.row({"step": 1, "loss": 2.5, "head": "eagle2"})
    assert main(["report", str(index), str(other)]) == 0
    printed = capsys.readouterr().out
    assert "| ngram | 8,192 | 5.0 | – | 1.0 | 2.0 | 3.0 | 4.0 |" in printed
    assert "| eagle2 | 1 | 2.5 |" in printed
    assert main(["page", str(index), str(other), "--out", str(tmp_path / "page.html")]) == 0
    Tree((tmp_path / "page.html").read_text())


def test_other_files_are_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    (tmp_path / "poem.txt").write_text("Whan that Aprille\n")
    assert main(["report", str(tmp_path / "poem.txt")]) == 1
    assert "line 1 is no line of a result file" in capsys.readouterr().err


def test_help_and_unknown_commands(capsys):
    assert main([]) == 0
    assert "remeasure FILE" in capsys.readouterr().out
    assert main(["poems"]) == 1


def test_remeasure_runs_the_command_of_a_file_again(tmp_path, monkeypatch):
    path, out = tmp_path / "index.jsonl", tmp_path / "again.jsonl"
    command = ["index", "--sizes", "64", "--indexes", "ngram", "--repeats", "1", "--out", str(path)]
    monkeypatch.setattr("sys.argv", ["benchmarks", *command])
    assert main(command) == 0
    assert main(["remeasure", str(path), "--out", str(out)]) == 0
    assert main(["remeasure", str(path), "--out", str(out)]) == 1  # exists
    assert out.read_text().count('"ngram"') == path.read_text().count('"ngram"')
