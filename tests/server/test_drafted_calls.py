"""Tool calls and JSON schema answers with drafting equal those of plain decoding, streamed or not.

The slow part is 320 calls of the default model; every one is also answered with a pool that has
answers to the same and other calls.
"""

from collections import Counter
from itertools import islice

import httpx
import pytest
from daily import daily
from serving import serving
from tiny import tiny_engine

import graft
from benchmarks.serve.calls import cases, compare
from graft.match.pool import Pools


def compared(engine, bodies):
    """The calls that drafting changed, and all accepted draft tokens by source."""
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=600) as client:
        rows = list(compare(client, bodies))
    accepted = sum((Counter(row["accepted"]) for row in rows), Counter())
    assert {row["stream"] for row in rows} == {True, False}
    return [row for row in rows if row["differs"]], accepted


def test_calls_of_a_tiny_model_are_those_of_plain_decoding():
    bodies = list(islice(cases(), 0, None, 67))
    assert {body["temperature"] for body in bodies} == {0, 0.8}
    wrong, accepted = compared(tiny_engine(pools=Pools()), bodies)
    assert not wrong
    assert accepted["pool"] + accepted["both"] > 10


@pytest.mark.parametrize("model", daily(["smollm2-135m"]))
def test_320_calls_are_those_of_plain_decoding(model):
    engine = graft.load(model, dtype="fp32", max_batch=1, pool=True)
    bodies = list(cases())
    assert len(bodies) == 320
    wrong, accepted = compared(engine, bodies)
    assert not wrong
    assert accepted["pool"] + accepted["both"] > 1000
