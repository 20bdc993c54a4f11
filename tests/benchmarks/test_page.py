"""The page of results: one file, all suites, nothing from elsewhere, readable without pictures."""

import re
from html.parser import HTMLParser

import pytest
from made_up_answers import answer, pair, results

from benchmarks.index.run import INDEX, KEY
from benchmarks.page.html import page, write_markdown
from benchmarks.page.sections import Section, section
from graft.bench.journal import open_journal
from graft.bench.panels import Panel, panels
from graft.bench.report import report
from graft.bench.tables import as_markdown
from graft.errors import InputError

pytest.importorskip("matplotlib")
pytest.importorskip("markdown_it")
TOLD = {
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
def told():
    plain = {"drafted": 0, "drafted_by_source": {}, "accepted_by_position": {}}
    answers = []
    for number in (1, 3):
        for context in (512, 1024):
            base, auto = pair(number, f"task{number}", context=context, told=TOLD)
            answers += [answer(**_fields(base) | plain), auto]
    return report(results(*answers))


def _fields(each):
    return {name: getattr(each, name) for name in each.__slots__}


@pytest.fixture(scope="module")
def shown(told):
    return page([Section("<first> & one", as_markdown(told), panels(told)), Section("two", "text")])


def test_every_plot_that_there_are_figures_for_is_drawn(told):
    titles = [panel.title for panel in panels(told)]
    assert titles == [
        "decoding against plain, greedy, context 512",
        "decoding against plain, greedy, context 1K",
        "tokens per step against context",
        "acceptance by position",
        "acceptance by source",
        "cost of a step against its nodes",
    ]
    said = {panel.title: panel.said for panel in panels(told)}
    assert "auto, context 512: 0.8 at 1, 0.2 at 2" in said["acceptance by position"]
    assert "task1, auto: 2.00" in said["decoding against plain, greedy, context 512"]
    assert "prompt 42% of 24" in said["acceptance by source"]
    assert "auto: 200 at 4" in said["cost of a step against its nodes"]
    assert "plain: 200 at 0" in said["cost of a step against its nodes"]


def test_the_page_needs_nothing_from_elsewhere(shown):
    tree = Tree(shown)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tree.found}
    for _, given in tree.found:
        for name in ("href", "src", "xlink:href"):
            assert (given.get(name) or "#").startswith("#")
    assert "@import" not in shown
    assert not re.search(r"url\((?!#)", shown)


def test_everything_has_a_name_and_ids_are_unique(told, shown):
    tree = Tree(shown)
    ids = [given["id"] for _, given in tree.found if "id" in given]
    assert len(ids) == len(set(ids))
    named = [given for tag, given in tree.found if tag == "figure" or given.get("role")]
    assert len([each for each in named if each.get("role") == "img"]) == len(panels(told))
    for given in named:
        assert all(name in ids for name in given["aria-labelledby"].split())
    assert all(given.get("scope") == "col" for tag, given in tree.found if tag == "th")
    assert ("html", {"lang": "en"}) in tree.found


def test_titles_are_text_not_markup(shown):
    assert "&lt;first&gt; &amp; one</h2>" in shown
    drawn = Panel("a <b>", "said <i>", lambda axes: axes.plot([1, 2]))
    text = page([Section("s", "| a |\n|---|\n| <script>x</script> |", [drawn])])
    assert "<script>" not in text
    assert "<i>" not in text


def test_light_and_dark_follow_the_reader(shown):
    assert "prefers-color-scheme: dark" in shown
    assert "currentColor" in shown
    assert "#000000" not in shown


def test_a_file_of_indexes_is_a_section(tmp_path):
    path = tmp_path / "index.jsonl"
    with open_journal(path, INDEX, KEY) as journal:
        journal.begin({"text": "made up", "repeats": 1})
        figures = {"extend_us": 1.0, "lookup_us": 2.0, "lookup_p99_us": 3.0, "nodes": 4.0}
        for size in (8192, 32768):
            journal.add({"index": "ngram", "tokens": size, "build_ms": 5.0, **figures})
    found = section(path, None)
    assert "| ngram | 8,192 | 5.0 | – | 1.0 | 2.0 | 3.0 | 4.0 |" in found.markdown
    assert [panel.title for panel in found.panels] == ["building, by tokens", "a lookup, by tokens"]
    Tree(page([found]))
    write_markdown([found], tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text().startswith("# Graft: benchmark results\n\n## index")


def test_what_is_no_result_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        section(tmp_path / "nowhere", None)
    (tmp_path / "poem.txt").write_text("Whan that Aprille\n")
    with pytest.raises(InputError, match="line 1 was not written by this version"):
        section(tmp_path / "poem.txt", None)
