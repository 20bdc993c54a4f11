"""Documents, predictions and tenants of requests to vLLM, and how drafts are counted by source."""

import json
import os
import subprocess
import sys

import fake_vllm
import pytest
from fake_vllm import VOCABULARY, Engine, config
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest, multiprocess

from graft.errors import InputError
from graft.integrations.vllm import Proposer
from graft.integrations.vllm_fields import MAX_TOKENS, Fields, read_fields

DOCUMENT = list(range(10, 60))
OTHER = list(range(200, 260))


@pytest.fixture
def engine(monkeypatch):
    def make(**options):
        runner = fake_vllm.install(monkeypatch)
        return Engine(runner, Proposer(config(**options), lambda: 0.0))

    return make


def test_a_request_drafts_from_its_documents_and_no_other_does(engine):
    engine = engine()
    engine.start("a", [1, 2], {"documents": [OTHER, DOCUMENT]})
    engine.start("b", [1, 2], json.dumps({"documents": [OTHER]}))
    engine.start("c", [1, 2])
    drafts = engine.step(a=[10, 11], b=[10, 11], c=[10, 11])
    assert drafts["a"][:3] == [12, 13, 14]
    assert (drafts["b"], drafts["c"]) == ([], [])
    assert engine.step(a=[200, 201], b=[200, 201], c=[200, 201])["b"][:2] == [202, 203]


def test_documents_are_indexed_once_when_a_request_arrives(engine, monkeypatch):
    engine, read = engine(), []
    monkeypatch.setattr(
        "graft.integrations.vllm_fields.read_fields", lambda value: read.append(value) or Fields()
    )
    engine.start("a", [1, 2], {"documents": [DOCUMENT]})
    engine.step(a=[])  # a part of the prompt
    assert len(read) == 1
    for token in (3, 4, 5):
        engine.step(a=[token])
    assert len(read) == 1


def test_no_draft_crosses_from_one_text_into_the_next(engine):
    engine = engine()
    engine.start("a", [300, 301], {"documents": [DOCUMENT, OTHER], "prediction": [400, 401]})
    assert engine.step(a=[58, 59])["a"] == []  # the end of the first document
    assert engine.step(a=[258, 259])["a"] == []
    assert engine.step(a=[400])["a"] == [401]


def test_a_text_is_tokenized(engine, monkeypatch):
    class Tokenizer:
        def encode(self, text, *, add_special_tokens):
            assert not add_special_tokens
            return [ord(letter) for letter in text]

    engine = engine()
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: Tokenizer())
    engine.runner.drafter.load_model(None)
    engine.start("a", [1], {"documents": ["a cat"], "prediction": "a dog \ud800"})
    assert engine.step(a=[*map(ord, "a c")])["a"] == [*map(ord, "at")]
    assert engine.step(a=[*map(ord, "a do")])["a"][:2] == [*map(ord, "g ")]


def test_without_a_tokenizer_a_text_is_refused(engine, monkeypatch, caplog):
    def missing(name):
        raise OSError("no such model")

    engine = engine()
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", missing)
    engine.runner.drafter.load_model(None)
    engine.start("a", [*DOCUMENT, 1], {"documents": ["a cat"]})
    assert engine.step(a=[10, 11])["a"][:2] == [12, 13]  # from the prompt
    first, second = [record.getMessage() for record in caplog.records]
    assert "no tokenizer, documents must be token ids: no such model" in first
    assert "request a: graft has a text, but vLLM has no tokenizer; send token ids" in second


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "graft is not JSON"),
        ("[" * 100_000, "graft is not JSON"),
        ([1], "graft must be an object such as"),
        ({"document": []}, "unknown field graft.document; fields: documents, prediction, tenant"),
        ({"documents": "text"}, "graft.documents must be a list of texts or of lists of token ids"),
        ({"documents": [1, 2]}, "graft.documents must be a list"),
        ({"documents": [[1, True]]}, "graft.documents must be a list"),
        ({"prediction": 5}, "graft.prediction must be a text or a list of token ids"),
        ({"tenant": 5}, "graft.tenant must be a string"),
        ({"documents": [[1] * (MAX_TOKENS + 1)]}, "about 262,145 tokens of text; send at most"),
        ({"documents": ["word" * MAX_TOKENS, [1]]}, "about 262,145 tokens of text"),
    ],
)
def test_a_bad_field_is_one_line(value, message):
    with pytest.raises(InputError, match=message):
        read_fields(value)


@pytest.mark.parametrize("wrong", [[-1], [VOCABULARY], [2**70]])
def test_ids_of_no_token_never_become_drafts(engine, caplog, wrong):
    engine = engine(graft={"pool": "memory"})
    engine.start("a", [1, 2], {"documents": [[10, 11, *wrong, 12]], "tenant": "t"})
    assert engine.step(a=[10, 11]) == {"a": []}
    assert "request a: graft has token ids outside of 0 to 999" in caplog.text


def answer(engine, name, fields, tokens):
    """A request that ended with this answer."""
    engine.start(name, [1, 2, 3], fields)
    for token in tokens:
        engine.step(**{name: [token]})
    engine.end(name)


def test_a_pool_drafts_from_answers_that_ended(engine):
    with_pool, without = engine(graft={"pool": "memory"}), engine()
    for each in (with_pool, without):
        answer(each, "first", None, DOCUMENT)
        each.start("later", [5, 6, 7, 11, 12])
    assert with_pool.step(later=[13])["later"][:3] == [14, 15, 16]
    assert without.step(later=[13]) == {"later": []}


def test_a_request_that_runs_is_in_no_pool(engine):
    engine = engine(graft={"pool": "memory"})
    engine.start("first", [1, 2, 3])
    engine.start("later", [5, 6, 7, 11, 12])
    for token in DOCUMENT:
        engine.step(first=[token])
    assert engine.step(later=[13]) == {"later": []}  # preempted, not ended
    engine.end("first")
    assert engine.step(later=[14])["later"][:2] == [15, 16]


def test_one_tenants_answers_draft_for_no_other(engine):
    engine = engine(graft={"pool": "memory"})
    answer(engine, "first", {"tenant": "red"}, DOCUMENT)
    for name, fields in {
        "red": {"tenant": "red"},
        "blue": {"tenant": "blue"},
        "none": None,
    }.items():
        engine.start(name, [5, 6, 7, 11, 12], fields)
    drafts = engine.step(red=[13], blue=[13], none=[13])
    assert drafts["red"][:3] == [14, 15, 16]
    assert (drafts["blue"], drafts["none"]) == ([], [])


def test_a_request_with_a_bad_field_uses_no_pool(engine):
    """Its tenant is not known."""
    engine = engine(graft={"pool": "memory"})
    answer(engine, "shared", None, DOCUMENT)
    answer(engine, "bad", {"tenant": "red", "documents": 5}, OTHER)
    engine.start("bad", [5, 6, 7, 11, 12], {"tenant": "red", "documents": 5})
    engine.start("shared", [5, 6, 7, 201, 202])
    assert engine.step(bad=[13], shared=[203]) == {"bad": [], "shared": []}


def counted(kind, source):
    return REGISTRY.get_sample_value(f"graft:{kind}_tokens_total", {"source": source}) or 0


def test_draft_tokens_are_counted_by_source(engine):
    before = {
        (kind, source): counted(kind, source)
        for kind in ("draft", "accepted")
        for source in ("document", "prediction", "prompt", "output", "pool")
    }
    engine = engine(graft={"pool": "memory"})
    answer(engine, "first", None, range(700, 720))
    before["draft", "output"] = counted("draft", "output")
    engine.start("a", [*range(500, 520), 1], {"documents": [DOCUMENT], "prediction": OTHER})
    lengths, sampled = {}, [1]
    for start, source in ((10, "document"), (200, "prediction"), (500, "prompt"), (702, "pool")):
        lengths[source] = len(engine.step(a=[*sampled, start, start + 1, start + 2])["a"])
        sampled = [] if source != "document" else [start + 3, start + 4]
    added = {key: counted(*key) - value for key, value in before.items()}
    assert all(lengths.values())
    assert {source: added["draft", source] for source in lengths} == lengths
    assert added["draft", "output"] == 0
    assert added["accepted", "document"] == min(4, lengths["document"])


def test_other_ranks_of_tensor_parallel_count_nothing(engine):
    before = counted("draft", "document")
    engine = engine(rank=1, ranks=2)
    engine.start("a", [1], {"documents": [DOCUMENT]})
    assert engine.step(a=[10, 11])["a"]
    assert counted("draft", "document") == before


def test_with_several_processes_the_servers_metrics_add_up(tmp_path):
    """As `vllm serve` with PROMETHEUS_MULTIPROC_DIR: another process counts."""
    program = (
        "from collections import Counter\n"
        "from graft.integrations.draft_counters import DraftCounters\n"
        "DraftCounters().add(Counter(document=5), Counter(document=3))\n"
    )
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], env=env, check=True)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(tmp_path))
    shown = generate_latest(registry).decode()
    assert 'graft:draft_tokens_total{source="document"} 10.0' in shown
    assert 'graft:accepted_tokens_total{source="document"} 6.0' in shown
