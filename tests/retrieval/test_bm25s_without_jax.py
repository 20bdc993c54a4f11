"""bm25s is imported without JAX."""

import subprocess
import sys

SEARCH = """
import sys
from graft.retrieval.bm25 import scores
assert scores("red apple", ["a red apple", "a boat"])[0] > 0
import jax.lax
print(jax.lax.calls)
"""


def test_jax_is_not_imported_and_can_be_imported_later(tmp_path):
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").touch()
    lax = "calls = []\n\ndef top_k(scores, k):\n    calls.append('memory is taken')\n"
    (package / "lax.py").write_text(lax)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SEARCH}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
