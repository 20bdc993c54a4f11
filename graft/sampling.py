"""From logits to a token: the one definition of sampling.

The token is the argmax of log p + Gumbel noise, and the noise is a hash of (seed, stream, index of
the generated token, token id). So a token depends on the seed and the distribution alone, not on
earlier draws or on the drafter: the same seed gives the same text with every drafter and with none.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from graft.errors import InputError
from graft.sampling_params import GREEDY_BELOW as GREEDY_BELOW
from graft.sampling_params import SamplingParams as SamplingParams

# Noise streams: the walk; acceptance test and residual of the rules with q; a drafter's samples
DRAW, ACCEPT, RESIDUAL, PROPOSE = range(4)
NEAR_TOP = 1024  # candidates that top-p examines first; sorting a vocabulary is slow
_MASK64 = (1 << 64) - 1

# (prompt and output so far, raw logits [V]) -> logits [V], a caller's logits processor
Process = Callable[[list[int], Tensor], Tensor]


def choose_seed() -> int:
    """A fresh seed, for requests without one."""
    return secrets.randbits(63)


class Sampler:
    """One sequence's sampling parameters and used tokens; sampling is a pure function of these.

    `process` comes before penalties and filters. It is called once for every sampled token, in
    order. With `process` or `keep_history`, `history` holds prompt and output: one list that grows,
    as copying a long prompt for every token takes longer than a step.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: list[int],
        vocabulary: int,
        *,
        choice: int = 0,
        process: Process | None = None,
        keep_history: bool = False,
    ) -> None:
        self.params, self._process = params, process
        self.history = list(prompt) if process or keep_history else None
        self.seed = choose_seed() if params.seed is None else params.seed
        self.choice = choice
        self.index = 0  # tokens generated so far
        unknown = [token for token in params.logit_bias if not 0 <= token < vocabulary]
        if unknown:
            raise InputError(f"logit_bias names token {unknown[0]}; the model has {vocabulary}")
        self._used = _Used(prompt, vocabulary) if params.penalised else None
        self._bias = _Bias(params.logit_bias) if params.logit_bias else None
        # Whether sampling depends on logits and tokens alone, not on a caller's `process`
        self.batchable = process is None
        # Whether penalties or a bias change the logits
        self.adjusts = self._used is not None or self._bias is not None
        # Whether sampling depends on logits and position alone, not on other tokens
        self.stateless = self.batchable and not self.adjusts

    def record(self, tokens: list[int]) -> None:
        """Count generated tokens."""
        self.index += len(tokens)
        if self.history is not None:
            self.history += tokens
        if self._used:
            self._used.add(tokens)

    def scores(self, logits: Tensor, ahead: list[int]) -> Tensor:
        """Processed, penalised and biased logits [V] for the token after `ahead`: sampled tokens
        that are not recorded yet."""
        if self._process:
            logits = self._processed(logits, ahead)
        return self.adjusted(logits[None], [ahead])[0] if self.adjusts else logits

    def _processed(self, logits: Tensor, ahead: list[int]) -> Tensor:
        recorded = len(self.history)
        self.history += ahead
        try:
            return self._process(self.history, logits.float())
        finally:
            del self.history[recorded:]

    def adjusted(self, logits: Tensor, ahead: list[list[int]]) -> Tensor:
        """Penalised and biased logits [n, V], each row for the token after its own `ahead`."""
        scores = logits.float().clone()
        if self._used:
            counts, known = self._used.counts(ahead, scores.device)
            scores = _penalised(scores, counts, known, self.params)
        if self._bias:
            self._bias.add_to(scores)
        return scores

    def draw(self, logits: Tensor, ahead: list[int]) -> int:
        """The token after `ahead`, for raw logits [V]."""
        scores = self.scores(logits, ahead)
        if self.params.greedy:
            return int(scores.argmax())
        tokens, kept = filter_tokens(scores, self.params)
        return self.draw_from(kept, tokens, len(ahead), DRAW)

    def distribution(self, logits: Tensor, ahead: list[int]) -> Tensor:
        """The distribution [V] that `draw` samples from."""
        scores = self.scores(logits, ahead)
        result = torch.zeros(scores.shape, dtype=torch.float32, device=scores.device)
        if self.params.greedy:
            result[scores.argmax()] = 1
            return result
        tokens, kept = filter_tokens(scores, self.params)
        result[tokens] = kept.softmax(-1)
        return result

    def draw_from(self, log_weights: Tensor, tokens: Tensor, ahead: int, stream: int) -> int:
        """Sample one of `tokens` with probability proportional to exp(log_weights)."""
        noise = gumbel(as_signed(self.key(ahead, stream)), tokens)
        return int(tokens[(log_weights.double() + noise).argmax()])

    def uniform(self, ahead: int, stream: int) -> float:
        """A random number in [0, 1) for the token after `ahead` more."""
        return (_mix(self.key(ahead, stream)) >> 11) * 2.0**-53

    def key(self, ahead: int, stream: int) -> int:
        """Noise key of the token after `ahead` more."""
        return _mix(_stream_key(self.seed, self.choice, stream) ^ (self.index + ahead + 1))


class _Used:
    """Which tokens the prompt has, and their counts in the output; kept on the logits' device."""

    def __init__(self, prompt: list[int], vocabulary: int) -> None:
        self._in_prompt = torch.zeros(vocabulary, dtype=torch.bool)
        self._in_prompt[torch.tensor(prompt, dtype=torch.int64)] = True
        self._counts = torch.zeros(vocabulary, dtype=torch.int32)
        self._new: list[int] = []  # generated, not counted yet

    def add(self, tokens: list[int]) -> None:
        """Add generated tokens."""
        self._new += tokens

    def counts(self, ahead: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """Counts [n, V] in the output, `ahead` included, and whether prompt or output have the
        token."""
        self._in_prompt = upload(self._in_prompt, device)
        self._counts = upload(self._counts, device)
        _count(self._counts, self._new)
        self._new.clear()
        counts, width = self._counts.repeat(len(ahead), 1), len(self._counts)
        _count(counts.view(-1), [i * width + t for i, some in enumerate(ahead) for t in some])
        return counts, self._in_prompt | (counts > 0)


def _count(counts: Tensor, places: list[int]) -> None:
    """Add one at every place; places may repeat."""
    if places:
        where = upload(torch.tensor(places), counts.device)
        counts.index_add_(0, where, torch.ones_like(where, dtype=counts.dtype))


class _Bias:
    """Values added to some tokens' logits; kept on the logits' device."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._tokens = torch.tensor(list(bias), dtype=torch.int64)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32)

    def add_to(self, scores: Tensor) -> None:
        """Change scores [n, V] in place."""
        self._tokens = upload(self._tokens, scores.device)
        self._values = upload(self._values, scores.device)
        scores[:, self._tokens] += self._values


def _penalised(scores: Tensor, counts: Tensor, known: Tensor, params: SamplingParams) -> Tensor:
    if params.repetition_penalty != 1:
        penalty = params.repetition_penalty
        factor = torch.where(scores > 0, 1 / penalty, penalty)
        scores = torch.where(known, scores * factor, scores)
    return scores - (params.frequency_penalty * counts + params.presence_penalty * (counts > 0))


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for the device."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def filter_tokens(scores: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Token ids that pass top-k, top-p and min-p, and their scores / temperature.

    Tokens that tie at the border of top-k or top-p all pass.
    """
    # A tensor: CUDA multiplies by the reciprocal of a plain number, which differs in the last bit.
    scaled = scores.float() / torch.full((), params.temperature, device=scores.device)
    tokens = None
    if params.top_k and params.top_k < len(scaled):
        border = scaled.topk(params.top_k).values[-1]
        tokens = (scaled >= border).nonzero()[:, 0]
    elif params.top_p == 1 and params.min_p == 0:
        tokens = (scaled > -math.inf).nonzero()[:, 0]
    kept = scaled if tokens is None else scaled[tokens]
    if params.top_p < 1:
        inside = (kept >= _nucleus_border(kept, params.top_p)).nonzero()[:, 0]
        tokens = inside if tokens is None else tokens[inside]
        kept = kept[inside]
    if params.min_p > 0:
        likely = (kept >= kept.max() + math.log(params.min_p)).nonzero()[:, 0]
        tokens = likely if tokens is None else tokens[likely]
        kept = kept[likely]
    return tokens, kept


def _nucleus_border(scaled: Tensor, top_p: float) -> Tensor:
    """The smallest of the most likely entries that hold `top_p` of the mass."""
    for count in (min(NEAR_TOP, len(scaled)), len(scaled)):
        border, reached = nucleus_borders(scaled[None], scaled[None].topk(count).values, top_p)
        if count == len(scaled) or reached:
            break
    return border[0]


def nucleus_borders(scaled: Tensor, top: Tensor, top_p: float | Tensor) -> tuple[Tensor, Tensor]:
    """The smallest entry [n, 1] of each row's nucleus, and whether `top` holds all of it [n, 1].

    `scaled` are rows [n, V], `top` their largest entries [n, t] in falling order. Sums are in
    float64, so that their order does not matter.
    """
    best = top[:, :1]
    wanted = top_p * (scaled - best).exp().sum(-1, dtype=torch.float64, keepdim=True)
    mass = (top - best).exp().cumsum(-1, dtype=torch.float64)
    inside = (mass[:, :-1] < wanted).sum(-1, keepdim=True)  # the entry that reaches it is in too
    return top.gather(1, inside), mass[:, -1:] >= wanted


def _mix(x: int) -> int:
    """splitmix64's finaliser."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


@lru_cache(maxsize=4096)
def _stream_key(seed: int, choice: int, stream: int) -> int:
    key = _mix(seed & _MASK64)
    for part in (choice, stream):
        key = _mix(key ^ (part + 1))  # not symmetric: (1, 0) and (0, 1) differ
    return key


def gumbel(key: int | Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise [n] float64 for these token ids: splitmix64 of key + id.

    The key is 64 bits `as_signed`, or a tensor of such keys.
    """

    def shifted(x: Tensor, places: int) -> Tensor:
        return (x >> places) & ((1 << (64 - places)) - 1)  # int64 shifts keep the sign

    x = (tokens + 1) * as_signed(0x9E3779B97F4A7C15) + key
    x = (x ^ shifted(x, 30)) * as_signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * as_signed(0x94D049BB133111EB)
    x = x ^ shifted(x, 31)
    uniform = (shifted(x, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def as_signed(word: int) -> int:
    """The int64 with these 64 bits."""
    return word - (1 << 64) if word >> 63 else word
