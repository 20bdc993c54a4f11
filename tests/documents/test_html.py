import pytest

from graft.documents import read_document
from graft.errors import InputError

PAGE = """<!DOCTYPE html><html><head><title>Title</title><style>p {color: red}</style></head><body>
<nav><a href="/">Home</a></nav><div role="navigation">Next page</div>
<h1>Leases<a class="headerlink" href="#l">¶</a></h1>
<p>Rent is <b>due</b> on the <a href="x.html">first</a>&nbsp;day;
de&shy;lays cost <em>5&thinsp;%</em>.
<br>See a_b *c* [1].</p>
<ul><li>keys<ul><li>front door</li></ul></li><li>mail</li></ul>
<table><tr><th>Flat</th><th>Rent</th></tr><tr><td>A</td><td>900</td></tr></table>
<pre><code>if paid:
    open()</code></pre>
<div style="display:none">A closed tab.</div>
<script>alert("no")</script></body></html>"""


def read(folder, data, name="page.html"):
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_document(path).text


def test_words_headings_lists_tables_and_code_are_kept(tmp_path):
    text = read(tmp_path, PAGE)
    for part in (
        "# Leases\n",
        "Rent is due on the first day;\ndelays cost 5",
        "See a_b *c* [1].",
        "- keys\n  ",
        "front door",
        "| Flat | Rent |",
        "| A | 900 |",
        "if paid:\n    open()",
        "A closed tab.",
    ):
        assert part in text
    for noise in ("Home", "Next page", "¶", "alert", "color", "x.html", "\u00ad", "\u00a0"):
        assert noise not in text


def test_numbers_of_sections_are_not_escaped(tmp_path):
    assert read(tmp_path, "<html><p>1. Scope</p><p>2) Terms</p>") == "1. Scope\n\n2) Terms\n"


@pytest.mark.parametrize("name", ["a.html", "a.HTM", "a.xhtml", "a.txt", "a"])
def test_page_is_recognised_by_its_beginning(tmp_path, name):
    page = "<?xml version='1.0'?>\n<!-- made by hand -->\n<html><body><p>Hello</p></body></html>"
    assert read(tmp_path, page, name) == "Hello\n"


def test_fragment_is_recognised_by_its_suffix(tmp_path):
    assert read(tmp_path, "<p>Hello</p>", "a.htm") == "Hello\n"
    assert read(tmp_path, "<p>Hello</p>", "a.md") == "<p>Hello</p>"


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("iso-8859-1", "cp1252"),
        ("windows-1251", "cp1251"),
        ("shift_jis", "cp932"),
        ("gb2312", "gb18030"),
        ("koi8-r", "koi8-r"),
        ("iso-8859-1", "utf-8"),
        ("utf-8", "utf-8"),
        ("no-such-charset", "utf-8"),
        ("hex", "utf-8"),
        ("utf-8", "utf-16"),
        ("utf-8", "utf-8-sig"),
    ],
)
def test_charset_is_found(tmp_path, declared, encoding):
    words = {"cp1252": "“Größe” – 5 €", "cp1251": "Договор", "koi8-r": "Договор"}
    expected = words.get(encoding, "日本語" if encoding != "gb18030" else "合同")
    page = f'<html><meta charset="{declared}"><p>{expected}</p>'
    assert read(tmp_path, page.encode(encoding)) == expected + "\n"


def test_western_page_without_a_charset_is_read_with_a_warning(tmp_path, caplog):
    assert read(tmp_path, "<p>Le café ouvre à midi.</p>".encode("latin-1")).startswith("Le café")
    assert "not UTF-8" in caplog.text


def test_too_deep_nesting_is_dropped_with_a_warning(tmp_path, caplog):
    page = "<p>above</p>" + "<div>" * 3000 + "below" + "</div>" * 3000
    assert "above" in read(tmp_path, page)
    assert "not read completely" in caplog.text


@pytest.mark.parametrize("page", ["<html><body></body></html>", "<html><script>x()</script>", " "])
def test_a_page_without_text_is_refused(tmp_path, page):
    with pytest.raises(InputError, match="page.html is empty"):
        read(tmp_path, page)
