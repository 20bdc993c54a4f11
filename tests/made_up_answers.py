"""What tests of `graft bench` share: answers nobody gave, and a listener that remembers."""

from graft.bench.records import Answer, Results

HEADER = {"date": "2026-11-15", "fixed": {}, "options": {"draft": ["plain"], "peers": []}}
TOKENS = {"a": [[1, 2, 3]], "b": [[1, 9, 3]], "c": [[1, 2, 4]]}


def answer(**changes):
    given = dict(suite="s", question_ids=[1], category="qa", system="plain", temperature=0.0)
    given |= dict(batch=1, repeat=0, session=0, prompt_tokens=10, tokens=11, first_tokens=1)
    given |= dict(prefill_seconds=1.0, decode_seconds=2.0, total_seconds=3.0, steps=10)
    return Answer(**{**given, **changes})


def results(*answers, dtype="fp32", peers=("hf",)):
    fixed = {"suite": "spec_bench", "model": "tiny", "dtype": dtype, "max_tokens": 8, "threads": 2}
    session = {
        "fixed": fixed,
        "hardware": {"cpu": "Neoverse-N1", "gpus": []},
        "versions": {"python": "3.12", "graft": "0.1.0", "torch": "2.13.0"},
        "commit": "abc",
        "date": "2026-11-15T04:00:00",
        "options": {"draft": ["plain", "auto"], "peers": list(peers)},
    }
    keyed = {each.key: each for each in answers}
    workers = {"hf": {"versions": {"torch": "2.12.0", "transformers": "5.0"}, "settings": {}}}
    return Results(sessions=[session], workers=workers, answers=keyed, token_ids=dict(TOKENS))


def pair(number, category="qa", *, faster=2.0, output="a", told=None, **changes):
    """plain and auto on one prompt; auto decodes `faster` and tells more about its drafting."""
    common = {"question_ids": [number], "category": category, "tokens": 11, **changes}
    plain = answer(**common, output="a")
    auto = answer(
        **{**common, "decode_seconds": 2.0 / faster, "total_seconds": 1.0 + 2.0 / faster},
        system="auto",
        output=output,
        steps=5,
        accepted_by_source={"prompt": 5},
        **(told or {}),
    )
    return plain, auto


class Recorder:
    """Remembers what a run told; interrupts once so many measurements are over."""

    def __init__(self, interrupt_after=None):
        self.lines, self.total, self.done, self.finished = [], None, None, 0
        self.interrupt_after = interrupt_after

    def begin(self, total, done):
        self.total, self.done = total, done

    def turn(self, text):
        self.now = text

    def advance(self):
        self.finished += 1
        if self.finished == self.interrupt_after:
            raise KeyboardInterrupt

    def say(self, line):
        self.lines.append(line)
