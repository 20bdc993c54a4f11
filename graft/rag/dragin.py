"""DRAGIN (Su et al. 2024): retrieve for words that are uncertain and attended to.

**RIND**, when to retrieve. The model generates without documents. Tokens are merged to words; a
word's weight a is how much later tokens attend to it (last layer, over the generated tokens alone:
the maximum over query rows, the mean over heads, summed over its tokens), its entropy h the mean of
its tokens'. The first sentence with a content word of

    a / (sum of a in the sentence) * h * (words in the sentence) > threshold

is dropped, with everything after it.

**QFS**, what to search for. The attention rows that predict those words weigh the earlier words of
question and text; the `top` content words by weight, in the order of the text, are the query. This
forward runs only after a trigger. Then the sentence is generated again with documents; only that
sentence is kept.

Fused attention kernels do not return weights, so they come from a separate forward over the short
text: the queries of the last layer with the keys that this forward has written there.

In the authors' code a sentence whose only uncertain words are function words also triggers, and
then divides zero by zero; the paper's definition multiplies those by zero, as here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.kernels.attention_weights import causal_weights
from graft.rag.policy import (
    Plan,
    Sentence,
    Token,
    Tokens,
    Written,
    has_sentence,
    sentences_of,
    spans_of,
    text_of,
)
from graft.rag.sentences import Language, Span, find_language

# The weights [H, n, n] of tokens in the last layer: row i has those of tokens 0 to i, with sum 1
Attention = Callable[[Sequence[int]], np.ndarray]


class ModelAttention:
    """Attention weights of an engine's model, computed between two steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._check(1)

    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        """See Attention."""
        self._check(len(tokens))
        return self._engine.exclusive(lambda: self._weights(list(tokens))).cpu().numpy()

    def _check(self, tokens: int) -> None:
        """Refuse logit caps, sinks and windows in the last layer: the weights would be wrong."""
        if not self._engine.model.forward.weighs_plainly(-1, tokens):
            raise InputError(
                f"DRAGIN needs attention weights over {tokens} tokens, which "
                f"{self._engine.model_name} does not provide; choose --policy fl, fs or flare"
            )

    def _weights(self, tokens: list[int]) -> Tensor:
        model = self._engine.model
        extent = model.prefixes.reserve(len(tokens))
        try:
            queries = model.queries(extent, tokens)
            rows = [(extent.start, len(tokens))]
            keys = model.arena.storage.keys_of(len(queries) - 1, rows)
            return causal_weights(queries[-1], keys)
        finally:
            model.close(extent)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The authors' choice for a model and a data set: RIND's threshold, words of a query."""

    rind: float
    top: int


# By model and family of questions; entropies depend on the vocabulary: tune for others.
PUBLISHED = {
    "7b": {
        "2wiki": Thresholds(1.0, 25),
        "hotpotqa": Thresholds(0.8, 35),
        "iirc": Thresholds(0.6, 35),
        "strategyqa": Thresholds(0.75, 35),
    },
    "13b": {
        "2wiki": Thresholds(0.8, 25),
        "hotpotqa": Thresholds(1.2, 35),
        "iirc": Thresholds(1.0, 25),
        "strategyqa": Thresholds(1.3, 25),
    },
    "vicuna-13b": {
        "2wiki": Thresholds(1.2, 25),
        "hotpotqa": Thresholds(1.2, 35),
        "iirc": Thresholds(1.3, 35),
        "strategyqa": Thresholds(1.5, 25),
    },
}


@dataclass(frozen=True, slots=True)
class Dragin:
    """Retrieve where RIND is above the threshold, with the query of QFS."""

    attention: Attention
    thresholds: Thresholds = PUBLISHED["7b"]["hotpotqa"]
    language: Language = field(default_factory=find_language)
    name: str = "dragin"
    scored: bool = True

    def __post_init__(self) -> None:
        if self.thresholds.rind < 0 or self.thresholds.top < 1:
            raise InputError("DRAGIN needs a threshold of 0 or more and 1 or more query words")

    def first(self, question: str) -> Plan:
        """See Policy."""
        return Plan(0, None)

    def next(self, written: Written) -> Plan:
        """See Policy."""
        if written.grounded:
            sentences = sentences_of(written.new, self.language)
            return Plan(sentences[0].last if sentences else len(written.new), None)
        found = self.uncertain(written.new)
        if found is None:
            return Plan(len(written.new), None)
        sentence, hits = found
        query = self.query(written, sentence, hits) or sentence.text
        words = ", ".join(text_of(written.new[a:b]).strip() for a, b in hits)
        return Plan(sentence.first, query, self._is_complete, reason=f"uncertain: {words}")

    def _is_complete(self, new: Tokens) -> bool:
        return has_sentence(new, self.language)

    def uncertain(self, new: Tokens) -> tuple[Sentence, list[Span]] | None:
        """RIND: the first sentence with uncertain content words, and these words."""
        if not new:
            return None
        weights = self.attention([token.id for token in new]).max(1).mean(0)  # [n]
        for sentence in sentences_of(new, self.language):
            words = words_of(new, sentence.first, sentence.last)
            values = rind(new, words, weights)
            content = content_of(new, words, self.language)
            hits = [
                word
                for word, value in zip(words, values, strict=True)
                if value > self.thresholds.rind and word in content
            ]
            if hits:
                return sentence, hits
        return None

    def query(self, written: Written, sentence: Sentence, hits: Sequence[Span]) -> str:
        """QFS: the content words that the uncertain ones attend to, in the order of the text."""
        before = [*written.question, *written.kept]
        tokens = [*before, *written.new[: sentence.last]]
        shifted = [(first + len(before), last + len(before)) for first, last in hits]
        shares = shares_before(self.attention([token.id for token in tokens]).mean(0), shifted)
        words = words_of(tokens, 0, len(tokens))
        content = content_of(tokens, words, self.language)
        earlier = [word for word in words if word in content and word not in shifted]
        ranked = sorted(earlier, key=lambda word: -shares[word[0] : word[1]].sum())
        chosen = sorted(ranked[: self.thresholds.top])
        return " ".join(text_of(tokens[a:b]).strip() for a, b in chosen)


def words_of(tokens: Tokens, first: int, last: int) -> list[Span]:
    """Spans of tokens that form one word: a word starts with or after a blank."""
    words: list[Span] = []
    blank = True
    for place in range(first, last):
        text = tokens[place].text
        if words and not blank and not text[:1].isspace():
            words[-1] = (words[-1][0], place + 1)
        else:
            words.append((place, place + 1))
        blank = text[-1:].isspace()
    return words


def rind(tokens: Tokens, words: Sequence[Span], weights: np.ndarray) -> np.ndarray:
    """RIND of each word of a sentence; all 0 without attention."""
    attended = np.array([weights[a:b].sum() for a, b in words])
    entropies = np.array([np.mean([_entropy(token) for token in tokens[a:b]]) for a, b in words])
    total = attended.sum()
    if not total > 0:
        return np.zeros(len(words))
    return attended / total * entropies * len(words)


def _entropy(token: Token) -> float:
    assert token.entropy is not None, "the call was made without scores"
    return token.entropy


def content_of(tokens: Tokens, words: Sequence[Span], language: Language) -> set[Span]:
    """The words that contain a noun, adjective, verb, name or number."""
    spans = spans_of(tokens)
    found = language.content_words(text_of(tokens))
    return {
        (first, last)
        for first, last in words
        if any(start < spans[last - 1][1] and end > spans[first][0] for start, end in found)
    }


def shares_before(attention: np.ndarray, hits: Sequence[Span]) -> np.ndarray:
    """[n]: mean attention of the tokens that predict the hits, each row normalised to 1.

    `attention` [n, n] is the mean over heads. A hit at the start has no such row.
    """
    shares = np.zeros(len(attention))
    for first, _ in hits:
        row = attention[first - 1, :first] if first else np.zeros(0)
        if row.sum() > 0:
            shares[:first] += row / row.sum() / len(hits)
    return shares
