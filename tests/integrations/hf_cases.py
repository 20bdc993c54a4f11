"""What the tests of the transformers drop-in share: tiny models, prompts, callbacks."""

import torch
from tiny import tiny_network, tiny_tokenizer
from transformers import LogitsProcessor, StoppingCriteria

from graft.integrations import hf

KINDS = ["panels", "lean", "hook"]
PAD = 1
WORDS = [tiny_tokenizer()(text).input_ids for text in (
    "the end and the answer in an inn on the river",
    "an inn",
    "Where did the winner go? then and there, and then there",
)]  # fmt: skip


def make(kind, **more):
    """A tiny model that runs through the forward of this name (see conftest.py)."""
    biases = {"attention_bias": True, "mlp_bias": True} if kind == "hook" else {}
    network = tiny_network(pad_token_id=PAD, **biases, **more)
    network.config.name_or_path = kind
    return network


def left_padded(prompts):
    width = max(map(len, prompts))
    rows = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


SHAPES = {"one": left_padded(WORDS[:1]), "ragged": left_padded(WORDS)}


def drafted(model, draft="copy", **options):
    return model.generate(custom_generate=hf.generate, draft=draft, **options)


def assert_same(model, **options):
    """Greedy tokens as transformers writes them; what was gained."""
    expected = model.generate(**options)
    found = drafted(model, **options)
    assert found.tolist() == expected.tolist()
    return hf.last_stats(model)


class Remembers(LogitsProcessor):
    """Forbids, per row, what it saw chosen two calls ago: state over calls, indexed by row."""

    def __init__(self):
        self.seen = None

    def __call__(self, input_ids, scores):
        self.seen = self.seen or [[] for _ in input_ids]
        scores = scores.clone()
        for row, ids in enumerate(input_ids):
            self.seen[row].append(int(ids[-1]))
            if len(self.seen[row]) > 2:
                scores[row, self.seen[row][-3]] = -torch.inf
        return scores


class NumberedRows(LogitsProcessor):
    """Another forbidden set for every row."""

    def __call__(self, input_ids, scores):
        for row in range(len(input_ids)):
            scores[row, row::7] -= 3.0  # in place, as some do
        return scores


class EndsRows(StoppingCriteria):
    """Ends row r at its own token, or when the last score was very sure."""

    def __init__(self, sure=None):
        self.sure = sure

    def __call__(self, input_ids, scores, **_):
        done = [int(ids[-1]) % 16 == row for row, ids in enumerate(input_ids)]
        if self.sure is not None:
            best = scores[-1].log_softmax(-1).max(-1).values
            return torch.tensor(done) | (best > self.sure)
        return torch.tensor(done)


def fresh(options):
    """Callbacks made anew, since both runs may change them."""
    lists = ("logits_processor", "stopping_criteria")
    return {k: [each() for each in v] if k in lists else v for k, v in options.items()}
