r"""Scores of one answer against its gold, from 0 to 1, each as its authors publish it.

- f1, exact match: SQuAD's, over words without case, punctuation and articles.
- rouge-l-sum: the package rouge-score, no stemming, a sentence per line (InfiniteBench, L-Eval).
- choice: LongBench v2's "The correct answer is (X)", stars removed; anything else is wrong.
- letters: one or several letters behind the last "Answer:", as the suites that let a model
  reason ask for; without that word those that the answer begins with.
- number: the last number of an answer (arithmetic).
- mention: whether every reference stands in the answer, whatever its case (RULER's string match).
- subspan: whether a reference stands in it, both without case, punctuation and articles (Lost in
  the Middle): for answers that are sentences, of which F1 and exact match say little.
- boxed: an integer in the last \boxed{}, else the last number (AIME).
- pass@1: `quality/code.py`.
- same query: ours, not Spider's: the first query of an answer equals the set's when both are in
  lower case outside quotes, with the same blanks, quotes and no semicolon.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from benchmarks.quality.code import passed
from graft.errors import InputError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
CHOICES = (r"The correct answer is \(([A-D])\)", r"The correct answer is ([A-D])")
SAID = re.compile(
    r"(?i:answers?)\W*(?i:is\b|are\b)?\W*([A-H]+\b(?:[\s)]*(?:,|&|/|and)[\s(]*[A-H]+\b)*)"
)
FIRST = re.compile(r"\W*([A-H]+)\b")
BOXED = re.compile(r"\\boxed\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
FENCED = re.compile(r"```(?:sql)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
QUERY = re.compile(r"\b(?:select|with)\b", re.IGNORECASE)
SIGNS = re.compile(r"([<>!]=|[(),=<>*+/-])")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def normalised(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    bare = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Whether it is any of them."""
    return float(normalised(answer) in map(normalised, references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Harmonic mean of precision and recall of words; the best reference counts."""
    return max(_f1(normalised(answer).split(), normalised(gold).split()) for gold in references)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = (Counter(answer) & Counter(gold)).total()
    return 2 * common / (len(answer) + len(gold))


def rouge_l_sum(answer: str, references: Sequence[str]) -> float:
    """F-measure of the union of longest common subsequences; the best reference counts."""
    return _rouge().score_multi(list(references), answer)["rougeLsum"].fmeasure


@cache
def _rouge() -> Any:  # noqa: ANN401
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise InputError("ROUGE needs rouge-score: pip install 'graftlm[bench]'") from None
    return RougeScorer(["rougeLsum"], use_stemmer=False)


def choice(answer: str, references: Sequence[str]) -> float:
    """Whether LongBench v2's rule finds the right letter."""
    plain = answer.replace("*", "")
    found = next(filter(None, (re.search(pattern, plain) for pattern in CHOICES)), None)
    return float(found is not None and found[1] in references)


def letters(answer: str, references: Sequence[str]) -> float:
    """Whether exactly the right letters are named."""
    named = [*SAID.finditer(answer)][-1:] or [FIRST.match(answer)]
    found = set(re.findall("[A-H]", named[0][1])) if named[0] else set()
    return float(any(found == set(gold) for gold in references))


def number(answer: str, references: Sequence[str]) -> float:
    """Whether the last number is the right one."""
    found = NUMBER.findall(answer)
    return float(bool(found) and any(_value(found[-1]) == _value(gold) for gold in references))


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def mention(answer: str, references: Sequence[str]) -> float:
    """The share of references that it says."""
    return sum(gold.lower() in answer.lower() for gold in references) / len(references)


def subspan(answer: str, references: Sequence[str]) -> float:
    """Whether it holds any of them."""
    said = normalised(answer)
    return float(any(normalised(gold) in said for gold in references))


def boxed(answer: str, references: Sequence[str]) -> float:
    """Whether the final answer is the right number."""
    framed = BOXED.findall(answer)
    return number(framed[-1] if framed else answer, references)


def same_query(answer: str, references: Sequence[str]) -> float:
    """Whether the SQL it begins with is any of them."""
    fenced = FENCED.search(answer)
    said = fenced[1] if fenced else answer
    begins = QUERY.search(said)
    query = said[begins.start() :].partition(";")[0] if begins else ""
    return float(_written_alike(query) in map(_written_alike, references))


def _written_alike(query: str) -> str:
    """Single blanks around every sign, one kind of quotes, lower case outside of them."""
    parts = re.split(r"('[^']*')", query.strip().rstrip(";").replace('"', "'"))
    bare = [p if p.startswith("'") else SIGNS.sub(r" \1 ", p.lower()) for p in parts]
    return " ".join(" ".join(bare).split())


Score = Callable[[str, Sequence[str]], float]
# what is reported of an answer whose gold is of that kind
SCORES: dict[str, dict[str, Score]] = {
    "f1": {"F1": f1, "exact match": exact_match},
    "rouge": {"ROUGE-L-Sum": rouge_l_sum},
    "choice": {"accuracy": choice},
    "letters": {"accuracy": letters},
    "number": {"accuracy": number},
    "passage": {"F1": f1, "exact match": exact_match, "holds answer": subspan},
    "mention": {"accuracy": mention},
    "boxed": {"accuracy": boxed},
    "code": {"pass@1": passed},
    "sql": {"same query": same_query},
}
