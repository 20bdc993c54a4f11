"""Made-up decode results, and a progress that records what it is shown."""

from graft.bench.decoding import DecodeRow
from graft.bench.result_file import ResultFile, new_header

TOKENS = {"a": [[1, 2, 3]], "b": [[1, 9, 3]], "c": [[1, 2, 4]]}


def row(**changes):
    given = {"suite": "s", "prompts": [1], "category": "qa", "variant": "plain"}
    given |= {"temperature": 0.0, "batch": 1, "context": 0, "repeat": 0, "prompt_tokens": 10}
    given |= {"tokens": 11, "first_tokens": 1, "steps": 10, "output": "a"}
    given |= {"prefill_seconds": 1.0, "decode_seconds": 2.0, "total_seconds": 3.0}
    return given | changes


def decode_row(**changes):
    return DecodeRow(**row(**changes))


def pair(number, category="qa", *, faster=2.0, output="a", more=None, **changes):
    """plain and auto on one prompt; auto decodes `faster` times as fast."""
    common = {"prompts": [number], "category": category, **changes}
    times = {"decode_seconds": 2.0 / faster, "total_seconds": 1.0 + 2.0 / faster}
    accepted = {"accepted_by_source": {"prompt": 5}, "steps": 5}
    auto = row(**common, **times, **accepted, variant="auto", output=output, **(more or {}))
    return row(**common), auto


def results(*rows, tokens=TOKENS, notes=(), **settings):
    file = ResultFile()
    given = {"suite": "s", "model": "tiny", "dtype": "fp32", "max_tokens": 8} | settings
    file.begin(new_header("decode", given, notes))
    written = set()
    for each in rows:
        new = each["output"] in tokens and each["output"] not in written
        written.add(each["output"])
        file.row(each | ({"token_ids": tokens[each["output"]]} if new else {}))
    return file.results


class Recorder:
    """Records messages; interrupts after so many measurements."""

    def __init__(self, interrupt_after=None):
        self.lines, self.shown, self.total, self.done, self.finished = [], [], None, None, 0
        self.interrupt_after = interrupt_after

    def begin(self, total, done):
        self.total, self.done = total, done

    def show(self, text):
        self.shown.append(text)

    def advance(self):
        self.finished += 1
        if self.finished == self.interrupt_after:
            raise KeyboardInterrupt

    def say(self, line):
        self.lines.append(line)
