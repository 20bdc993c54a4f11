"""Document templates: the same forms filled in again and again with other facts.

The forms and their contents are Wikipedia's of 2006 (enwik8): paragraphs on the census that a
program wrote for places of the United States, and the boxes of species and persons. A prompt has
the facts: the figures of the paragraph, or the beginning of the article. The gold answer is what
the article has. All prompts of an article are in one half.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.suites.source import Source
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group
from graft.errors import InputError

SOURCE = Source(
    suite="templates",
    owner="the Hutter Prize",
    names=("enwik8",),
    row="a page of Wikipedia's XML",
)
MAX_TOKENS = 320
MAX_CHARACTERS = 1600  # of an article's beginning, and of a box
PAGE = re.compile(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
LINK = re.compile(r"\[\[(?:[^][|]*\|)?([^][|]*)\]\]")
MARKUP = re.compile(r"\{\{[^{}]*\}\}|<[^<>]*>|'{2,}")
FIGURE = re.compile(r"\$?\d[\d,.]*\d%?|\$?\d%?")
WORDS = re.compile(r"(?: ?[A-Za-z/²()-]+){1,4}")
PARAGRAPHS = {
    "population": "As of the census of 2000, there ",
    "households": "There (?:are|were) [0-9,]+ households,? out of which ",
    "ages": "In the [a-z]+,? the population (?:is|was) spread out",
    "incomes": "The median income for a household in the ",
}
BOX = re.compile(r"\{\{(Taxobox|Persondata) *\n(?:[^{}]|\{\{[^{}]*\}\})*\}\}")


def read(data: Path | None) -> list[Prompt]:
    """One prompt per paragraph or box, in the order of the articles."""
    found = [
        (title, *item)
        for title, text in PAGE.findall(SOURCE.text(data))
        for item in (*_paragraphs(title, text), *_boxes(title, text))
    ]
    if not found:
        raise InputError(f"{SOURCE.find(data)} has no page with a known template; take enwik8")
    numbers = numbers_by_group(title for title, *_ in found)
    return [
        Prompt(number, category, chat(question), gold=Gold("rouge", (answer,)))
        for number, (_, category, question, answer) in zip(numbers, found, strict=True)
    ]


def _paragraphs(title: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Category, question and answer of each paragraph on the census."""
    if "[[census]]" not in text:
        return
    for line in _plain(text).splitlines():
        for kind, start in PARAGRAPHS.items():
            if re.match(start, line):
                facts = "\n".join(f"- {fact}" for fact in _facts(line))
                question = (
                    f"Write the paragraph on {kind} of the census report on {title} in its usual "
                    f"form, with these figures:\n{facts}"
                )
                yield "census", question, line


def _facts(paragraph: str) -> list[str]:
    """Each figure with the words after it."""
    facts = []
    for figure in FIGURE.finditer(paragraph):
        words = WORDS.match(paragraph, figure.end())
        facts.append(figure[0] + (words[0] if words else ""))
    return facts


def _boxes(title: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Category, question and answer of each box."""
    text = html.unescape(html.unescape(text))
    for box in BOX.finditer(text):
        if len(box[0]) <= MAX_CHARACTERS:
            article = _plain(text.replace(box[0], ""))[:MAX_CHARACTERS].strip()
            question = (
                f"{article}\n\nFill in Wikipedia's template {box[1]} for the article {title}. "
                "Write the template only."
            )
            yield box[1].lower(), question, box[0]


def _plain(text: str) -> str:
    """Without the marks of links, references and fonts."""
    text = MARKUP.sub("", html.unescape(html.unescape(text)))
    return re.sub(" +", " ", LINK.sub(r"\1", text)).strip()
