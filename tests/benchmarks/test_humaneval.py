import gzip
import json

import pytest

from benchmarks.suites.humaneval import read
from graft.errors import InputError

ROWS = [
    {"task_id": "HumanEval/3", "prompt": '\n\ndef add(a, b):\n    """Sum."""\n', "test": "x"},
    {"task_id": "HumanEval/8", "prompt": 'def sub(a, b):\n    """Difference."""\n', "test": "x"},
]


def test_a_task_keeps_its_number_and_asks_for_the_whole_function(tmp_path):
    content = "".join(json.dumps(row) + "\n" for row in [*ROWS, ROWS[0]])
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    prompts = read(tmp_path)
    assert [(prompt.number, prompt.category) for prompt in prompts] == [(3, "code"), (8, "code")]
    [message] = prompts[0].content
    assert message["role"] == "user"
    assert message["content"].endswith('\n\n```python\ndef add(a, b):\n    """Sum."""\n```')
    assert "whole function" in message["content"]


@pytest.mark.parametrize("row", [{"task_id": "HumanEval/x", "prompt": "def"}, {"task_id": "H/1"}])
def test_a_line_that_is_no_task_is_named(tmp_path, row):
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(row))
    with pytest.raises(InputError, match="line 1 is not a HumanEval task"):
        read(tmp_path)
