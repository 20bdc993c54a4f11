"""Compares drafted answers with plain decoding's."""

import pytest
from tiny import VOCABULARY, tiny_engine
from watched import Adversary, Oracle, WatchedWalk

from graft.decode.request import Request


class Bench:
    """An engine with all drafters, and plain decoding's answers."""

    def __init__(self, **options):
        self.watch = WatchedWalk()
        self.oracle, self.adversary = Oracle(VOCABULARY), Adversary(VOCABULARY)
        drafters = {"oracle": self.oracle, "adversary": self.adversary}
        self.engine = tiny_engine(drafters=drafters, verify=self.watch, **options)
        self._plain = {}

    def plain(self, prompt, params):
        key = repr((prompt, params, sorted(self.engine.loaded.eos_ids)))
        if key not in self._plain:
            self._plain[key] = run(self.engine, prompt, params, "plain")
        tokens = tuple(self.engine.encoder.prompt(prompt).tokens)
        for drafter in (self.oracle, self.adversary):
            drafter.answers[tokens] = self._plain[key][0].token_ids
        return self._plain[key]

    def check(self, prompt, params, draft, **more):
        """Generate with a drafter and check that the result is plain decoding's."""
        expected, expected_events = self.plain(prompt, params)
        result, events = run(self.engine, prompt, params, draft, **more)
        assert_same(result, expected)
        for event, other in zip(events, expected_events, strict=True):
            assert (event.token, event.text) == (other.token, other.text)
            if params.logprobs is not None:
                assert event.probability == pytest.approx(other.probability, abs=1e-4)
                assert event.entropy == pytest.approx(other.entropy, abs=1e-4)
                assert dict(event.top) == pytest.approx(dict(other.top), abs=1e-4)
        return result


def run(engine, prompt, params, draft, salt="", **more):
    request = Request(prompt, params, draft, cache_salt=salt, **more)
    stream = engine.stream(request)
    events = list(stream)
    return stream.result, events


def assert_same(result, expected):
    assert result.token_ids == expected.token_ids
    assert result.text == expected.text
    assert result.finish_reason == expected.finish_reason


def accepted(results):
    return sum(result.stats.num_accepted_draft_tokens for result in results)


def rejected(results):
    return sum(result.stats.num_draft_tokens for result in results) - accepted(results)
