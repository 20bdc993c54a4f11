"""What a request yields: token events while it runs, a result at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graft.decode.stats import Stats
from graft.draft.copies.texts import NOWHERE, Origin
from graft.tree.draft_tree import DraftTree
from graft.verify.verdict import Promise

Scores = tuple[float | None, float | None, tuple[tuple[int, float], ...]]
NO_SCORES: Scores = (None, None, ())


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. `text` may be empty while a character or stop string is incomplete.

    `source` names the drafter that proposed the token, "" for the target itself; `origin` is where
    a copied token comes from. `step` counts target forwards; 0 is the one that ended the prefill.
    `choice` numbers the n answers to one prompt. `probability`, `entropy` and `top` (the most
    likely tokens with log-probabilities) describe the model's own distribution; they are set when
    `SamplingParams.logprobs` is.
    """

    token: int
    text: str
    source: str
    step: int
    choice: int = 0
    probability: float | None = None
    entropy: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A complete answer. `finish_reason` is "stop", "length" or "cancelled".

    `seed` reproduces the answer. `promise` says what the answer has in common with plain decoding.
    With `SamplingParams.n` > 1 this is the first answer, and `choices` holds all of them.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    seed: int
    stats: Stats
    choices: "tuple[Result, ...]" = ()
    promise: Promise = Promise.SAME_TEXT

    @property
    def lossless(self) -> bool:
        """Whether drafting leaves the distribution of answers unchanged."""
        return self.promise.lossless

    @property
    def approximate(self) -> bool:
        """Whether keys and values were reused that the model would not have computed itself."""
        return self.stats.approximate


@dataclass(slots=True)
class StepOutput:
    """What a step yields for one sequence, before events are made of it.

    `tree` is None for the first token. `texts` and `scores` are set only if the step needs them.
    """

    tree: DraftTree | None
    path: list[int]
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)

    def sources(self) -> list[str]:
        """The drafter of each token, "" for the target."""
        accepted = self.path[1 : len(self.tokens) + 1]
        drafted = [self.tree.source(node) for node in accepted] if self.tree else []
        return drafted if len(drafted) == len(self.tokens) else [*drafted, ""]

    def place(self, number: int) -> int:
        """Where the token of this number is copied from (`draft/copies/texts.py`)."""
        node = number + 1
        return self.tree.place(self.path[node]) if self.tree and node < len(self.path) else NOWHERE


def token_scores(tokens: Sequence[int], logits: Tensor, top: int) -> list[Scores]:
    """Probability, entropy and the `top` most likely tokens for logits [n, V].

    All tokens of a step at once, so that the host waits for the device once.
    """
    log_probs = torch.log_softmax(logits.float(), -1)
    entropy = -(log_probs.exp() * log_probs.clamp(min=-1e9)).sum(-1)  # [n]
    chosen = log_probs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).exp()
    best = log_probs.topk(top)  # [n, top] twice
    rows = torch.cat([chosen, entropy[:, None], best.values], 1).tolist()
    return [
        (probability, own_entropy, tuple(zip(ids, likely, strict=True)))
        for (probability, own_entropy, *likely), ids in zip(
            rows, best.indices.tolist(), strict=True
        )
    ]
