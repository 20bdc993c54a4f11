"""Structured outputs: JSON, a JSON schema, a regular expression, a choice or a grammar.

llguidance computes the tokens that may come next. It has no dependencies, one wheel for every
Python on x86 and Arm, and validates several tokens without changing its state. So draft tokens
that the grammar forbids are pruned before they are scored.
"""

import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from graft.decode.engine import Engine
from graft.decode.prepared_request import Constrain
from graft.errors import GraftError, InputError
from graft.models.checkpoints.tokenizer import serialised
from graft.tree.draft_tree import DraftTree
from graft.tree.prune import keep

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

regex_grammar = LLMatcher.grammar_from_regex  # of texts that a regular expression fully matches
lark_grammar = LLMatcher.grammar_from_lark  # llguidance's dialect of Lark
# As json.dumps writes it. With free white space a small model may generate nothing else.
SPACING: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
ANY_OBJECT = {"type": "object"}


def json_grammar(schema: dict[str, Any] | str) -> str:
    """The grammar of JSON that matches a schema."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InputError(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InputError("a JSON schema must be an object")
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=SPACING)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the JSON schema cannot be used: {error}") from None


def choice_grammar(choices: list[str]) -> str:
    """The grammar of exactly these texts."""
    if not all(choices):
        raise InputError("a choice must not be empty")
    quoted = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return LLMatcher.grammar_from_lark(f"start: {quoted}")


class Grammars:
    """Compiles grammars for an engine's tokenizer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None

    @property
    def tokens(self) -> LLTokenizer:
        """llguidance's tokenizer, made on first use because that takes a second."""
        with self._lock:
            if self._tokens is None:
                self._tokens = LLTokenizer(
                    serialised(self._engine.loaded.tokenizer),
                    n_vocab=self._engine.model.vocabulary,
                    eos_token=sorted(self._engine.loaded.eos_ids),
                )
            return self._tokens

    def constrain(self, grammar: str) -> Constrain:
        """A factory of constraints, one for each answer; InputError for an invalid grammar."""
        try:
            first = LLMatcher(self.tokens, grammar, log_level=0)
        except ValueError as error:
            raise InputError(f"the grammar cannot be used: {error}") from None
        if first.is_error():
            raise InputError(f"the grammar cannot be used: {_first_line(first.get_error())}")
        return lambda prompt_tokens: Grammar(first.deep_copy(), prompt_tokens)


class Grammar:
    """The state of one answer in its grammar (a `Constraint`)."""

    def __init__(self, matcher: LLMatcher, seen: int) -> None:
        self._matcher, self._seen = matcher, seen

    def process(self, tokens: list[int], logits: Tensor) -> Tensor:
        """See Constraint."""
        self._follow(tokens)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=logits.shape[-1], bitorder="little").astype(bool)
        if not allowed.any():
            raise GraftError(f"no token is allowed: {_first_line(self._matcher.get_error())}")
        forbidden = torch.from_numpy(~allowed).to(logits.device)
        return logits.masked_fill(forbidden, -torch.inf)

    def prune(self, tokens: list[int], tree: DraftTree) -> DraftTree:
        """See Constraint."""
        self._follow(tokens)
        legal = {0}
        parents, tokens_of = tree.parents.tolist(), tree.tokens.tolist()
        for leaf in sorted(set(range(1, len(tree))) - set(parents)):
            path = [leaf]
            while parents[path[-1]] > 0:
                path.append(parents[path[-1]])
            path.reverse()
            legal.update(path[: self._matcher.validate_tokens([tokens_of[node] for node in path])])
        return tree if len(legal) == len(tree) else keep(tree, list(legal))

    def _follow(self, tokens: list[int]) -> None:
        """Consume the tokens since the last call."""
        new = tokens[self._seen :]
        if new and not self._matcher.consume_tokens(new):
            raise GraftError(f"a token is not allowed: {_first_line(self._matcher.get_error())}")
        self._seen = len(tokens)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
