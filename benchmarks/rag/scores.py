"""Is an answer right? Exact match, F1 and accuracy as DRAGIN's evaluation counts them.

The prediction is what stands behind the first "the answer is". StrategyQA's is yes if it begins
with yes, else no; 2WikiMultiHopQA takes the whole text where the words are missing.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graft.rag.answer import extract

YES_NO = frozenset({"yes", "no", "noanswer"})
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Scores:
    """From 0 to 1; `accuracy` only where answers are yes or no."""

    exact: float
    f1: float
    accuracy: float | None = None


def predicted(set_name: str, written: str) -> str:
    """The answer in a text."""
    found = extract(written)
    if set_name == "strategyqa":
        return "" if not found else ("yes" if found.lower().startswith("yes") else "no")
    if set_name == "2wiki" and not found:
        return written.strip()
    return found


def score(set_name: str, prediction: str, golds: Sequence[str]) -> Scores:
    """Against the best of the golds."""
    said, right = normal(prediction), [normal(gold) for gold in golds]
    exact = float(said in right)
    f1 = max(_f1(said, gold) for gold in right)
    return Scores(exact, f1, exact if set_name == "strategyqa" else None)


def normal(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(said: str, gold: str) -> float:
    """Of their words; 0 where one is yes or no and the other is not the same."""
    if said != gold and YES_NO & {said, gold}:
        return 0.0
    one, other = said.split(), gold.split()
    common = (Counter(one) & Counter(other)).total()
    return 2 * common / (len(one) + len(other)) if common else 0.0
