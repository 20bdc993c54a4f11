"""A fake engine: the tests check what the commands print, not what a model generates."""

from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import graft
from graft.cli.main import app
from graft.errors import ContextLengthError
from graft.models.checkpoints import pretrained
from graft.verify.verdict import Promise


@dataclass
class FakeEvent:
    token: int
    text: str
    source: str
    step: int
    probability: float = 0.9


@dataclass
class FakeStats:
    prompt_tokens: int = 100
    cached_tokens: int = 0
    approximate_tokens: int = 0
    tokens: int = 4
    steps: int = 2
    tokens_per_step: float = 2.0
    prefill_seconds: float = 0.5
    decode_seconds: float = 0.25
    tokens_per_second: float = 16.0
    accepted_by_source: dict = field(default_factory=dict)
    inner_drafted_by_source: dict = field(default_factory=dict)
    inner_accepted_by_source: dict = field(default_factory=dict)

    def as_dict(self):
        return asdict(self)


@dataclass
class FakeResult:
    text: str
    token_ids: list
    seed: int
    stats: FakeStats
    finish_reason: str = "stop"
    promise: Promise = Promise.SAME_TEXT

    @property
    def lossless(self):
        return self.promise.lossless


class FakeStream:
    """Yields prepared events; a prepared exception is raised at its place."""

    def __init__(self, events, result):
        self.events = events
        self.result = result
        self.closed = False
        self.prefill_progress = (0, result.stats.prompt_tokens)

    def ready(self):
        return self.prefill_progress[0] == self.prefill_progress[1]

    def step(self):
        self.prefill_progress = (self.prefill_progress[0] + 50, self.prefill_progress[1])

    def __iter__(self):
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event

    def close(self):
        self.closed = True


class FakeEncoder:
    """One token per word."""

    def text(self, text):
        return text.split()

    def chat(self, messages):
        return SimpleNamespace(tokens=[w for each in messages for w in each["content"].split()])


class FakeEngine:
    model_name = "fake"
    dtype = "fp32"
    is_exact = False
    device = "cpu"
    context_length = 8192
    load_seconds = 1.5
    encoder = FakeEncoder()

    def __init__(self):
        self.calls = []
        self.streams = []
        self.plain_tokens = [5, 6, 7, 8]
        self.interruption = None
        self.promise = Promise.SAME_TEXT
        self.remembered = []

    def remember(self, prompt):
        self.remembered.append(prompt)

    def stream(self, prompt, params, draft="auto", documents=(), prediction=None):
        self.calls.append((prompt, params, draft))
        if "too long" in prompt[-1]["content"]:
            raise ContextLengthError("the prompt has 9000 tokens; fake takes 8192")
        seed = 77 if params.seed is None else params.seed
        if draft == "plain":
            stats = FakeStats(steps=4, tokens_per_step=1.0, decode_seconds=1.0)
            stream = FakeStream([], FakeResult("", self.plain_tokens, seed, stats))
        else:
            sources = {"prompt": 2, "output": 0}
            words = [("Four", ""), (" ", "prompt"), ("hours", "prompt"), (".", "")]
            events = [FakeEvent(5 + i, text, by, i // 2) for i, (text, by) in enumerate(words)]
            if self.interruption:
                events.insert(2, self.interruption)
            stats = FakeStats(accepted_by_source=sources)
            if draft == "triforce":
                stats.inner_drafted_by_source = {"prompt": 7, "output": 2}
                stats.inner_accepted_by_source = {"prompt": 5}
            result = FakeResult("Four hours.", [5, 6, 7, 8], seed, stats, promise=self.promise)
            stream = FakeStream(events, result)
        self.streams.append(stream)
        return stream


@pytest.fixture
def engine(monkeypatch):
    fake = FakeEngine()
    fake.loaded = []

    def load(name, **options):
        fake.loaded.append((name, options))
        return fake

    monkeypatch.setattr(graft, "load", load, raising=False)
    monkeypatch.setattr(pretrained, "locate", lambda name: None)
    return fake


@pytest.fixture
def cli(monkeypatch):
    monkeypatch.delenv("GRAFT_DEBUG", raising=False)

    def invoke(*arguments, stdin=None):
        return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)

    return invoke


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "contract.md"
    path.write_text("A technician is on site within four hours.\n")
    return path
