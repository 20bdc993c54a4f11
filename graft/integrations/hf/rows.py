"""One sequence of a batch as transformers' logits processors and stopping criteria see it.

In transformers the rows of a batch advance together, left-padded to one length, and processors get
all of them at once. Here every row advances by its accepted tokens, so processors get one row with
the padding of the batch in front; unknown processors, which may use the row's number, get it
repeated at every number, and only its own result is used.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList

from graft.errors import InputError

# transformers' own that process each row independently and keep no state.
_ROW_WISE = {
    "EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper", "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopHLogitsWarper",
    "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper", "WatermarkLogitsProcessor",
    "EosTokenCriteria", "MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria",
}  # fmt: skip
_MODULES = ("transformers.generation.logits_process", "transformers.generation.stopping_criteria")


def _is_row_wise(each: Callable) -> bool:
    return type(each).__module__ in _MODULES and type(each).__name__ in _ROW_WISE


@dataclass(slots=True)
class Ends:
    """The length of each finished row, and when the batch ends.

    Without an end token, transformers continues rows that a criterion ended until all have ended.
    """

    at: list[int | None]
    go_on: bool

    def stop(self, row: int, length: int, *, done: bool) -> bool:
        """Whether a row of `length` tokens ends; `done` is the result of the criteria."""
        if done and self.at[row] is None:
            self.at[row] = length
        if not self.go_on or self.at[row] is None:
            return self.at[row] is not None
        return None not in self.at and length >= self.longest

    @property
    def longest(self) -> int:
        """Length of the longest finished row."""
        return max((length for length in self.at if length), default=0)

    @property
    def lengths(self) -> list[int]:
        """Length of each row in the output."""
        return [self.longest if self.go_on or end is None else end for end in self.at]


@dataclass(frozen=True, slots=True)
class GenerateArgs:
    """Which distributions to return, and whether tokens are sampled."""

    scores: bool
    logits: bool
    sampled: bool


class Row:
    """The processors, criteria and returned distributions of a row."""

    def __init__(  # noqa: PLR0913
        self,
        number: int,
        input_ids: Tensor,
        prompt: list[int],
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        *,
        ends: Ends,
        args: GenerateArgs,
    ) -> None:
        self._number, self._rows = number, len(input_ids)
        self.prompt, self._width, self._ends = prompt, input_ids.shape[1], ends
        self._ids, self._known = input_ids[number : number + 1].clone(), 0
        self._processors = LogitsProcessorList(self._own(each) for each in processors)
        self._criteria = StoppingCriteriaList(self._own(each) for each in criteria)
        self._args = args
        self.scores: list[Tensor] = []  # [V] of every token
        self.logits: list[Tensor] = []

    @property
    def processes(self) -> bool:
        """Whether `process` has anything to do."""
        return bool(self._processors) or self._args.scores or self._args.logits

    def process(self, history: list[int], logits: Tensor) -> Tensor:
        """`Request.process`: the logits [V] as transformers' processors leave them."""
        ids = self._seen(history)
        scores = logits.to(ids.device, torch.float32, copy=True)[None]
        if self._args.logits:
            self.logits.append(scores[0].clone())
        for processor in self._processors:
            scores = self._call(LogitsProcessorList([processor]), ids, scores)
        if self._args.scores:
            self.scores.append(scores[0])
        if self._args.sampled and not bool(scores.max().isfinite()):
            raise InputError("the logits processors leave no token to sample")
        return scores[0]

    def stop_when(self, history: list[int], logits: Tensor) -> bool:
        """`Request.stop_when`: whether a criterion ends the row here."""
        ids, length = self._seen(history), len(history) - len(self.prompt)
        scores = tuple(each[None] for each in self.scores[:length]) if self._args.scores else None
        done = [
            bool(self._call(StoppingCriteriaList([criterion]), ids, scores))
            for criterion in self._criteria
        ]
        return self._ends.stop(self._number, length, done=any(done))

    def _seen(self, history: list[int]) -> Tensor:
        """[1, n]: the padded prompt and the output so far."""
        output = len(history) - len(self.prompt)
        if output > self._known:
            more = history[len(self.prompt) + self._known :]
            end = self._width + output
            if end > self._ids.shape[1]:
                larger = self._ids.new_empty(1, max(end, 2 * self._ids.shape[1]))
                larger[:, : self._width + self._known] = self._ids[:, : self._width + self._known]
                self._ids = larger
            self._ids[0, self._width + self._known : end] = self._ids.new_tensor(more)
            self._known = output
        return self._ids[:, : self._width + output]

    def _own(self, each: Any) -> Any:  # noqa: ANN401
        """A processor or criterion for this row only: a copy if it may have state."""
        if self._rows == 1 or _is_row_wise(each):
            return each
        shared = (nn.Module, PreTrainedTokenizerBase)
        kept = {id(v): v for v in getattr(each, "__dict__", {}).values() if isinstance(v, shared)}
        try:
            return copy.deepcopy(each, kept)
        except (TypeError, RuntimeError, NotImplementedError, copy.Error) as error:
            raise InputError(
                f"{type(each).__name__} cannot be copied for the rows of a batch; "
                "generate from one prompt at a time"
            ) from error

    def _call(self, one: Any, ids: Tensor, scores: Any) -> Tensor:  # noqa: ANN401
        """Call a list of one processor or criterion for this row."""
        if self._rows == 1 or _is_row_wise(one[0]):
            return one(ids, scores)
        if isinstance(scores, tuple):
            scores = tuple(each.expand(self._rows, -1) for each in scores)
        elif scores is not None:
            scores = scores.repeat(self._rows, 1)
        output = one(ids.expand(self._rows, -1), scores)
        return output[self._number : self._number + 1]
