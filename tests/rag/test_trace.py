"""The HTML page of an answer: complete, self-contained, passages escaped."""

from html.parser import HTMLParser

from scripted_engine import ScriptedEngine

from graft.rag.corpus import Bm25Corpus, Passage
from graft.rag.session import Session
from graft.rag.trace import trace_html
from graft.sampling import SamplingParams

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Texts by class of the innermost marked element, and whether every element is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts, self.links = [], [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, kind in self.open:
            self.texts[kind] = self.texts.get(kind, "") + data


def test_page_has_question_answer_rounds_and_dropped_text():
    corpus = Bm25Corpus([Passage("1", "a <script>alert(1)</script> boat & more", "B<b>oat")])
    engine = ScriptedEngine(" A boat. Dropped", " So the answer is <i>no</i>.|")
    answer = Session(engine, corpus, policy="fs", reuse="off").ask(
        "Which boat?", SamplingParams(max_tokens=99)
    )
    page = Page(trace_html(answer, model="tiny"))
    assert page.open == []
    assert page.tags.count("section") == 2
    assert page.texts["answer"] == "<i>no</i>"
    assert "Which boat?" in page.texts["query"]
    assert "<script>alert(1)</script> boat & more" in page.texts["passage"]
    assert "script" not in page.tags
    assert "del" in page.tags
    assert page.links == []
