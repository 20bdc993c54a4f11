"""The drafter of docs/drafters.md works when it is pasted."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny import tiny_engine

from graft.assemble.presets import PRESETS, Preset
from graft.sampling import SamplingParams

PAGE = (Path(__file__).parents[1] / "docs" / "drafters.md").read_text()
DRAFTER, ENTRY = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MODULE = "graft.draft.copies.bigram"


@pytest.fixture
def engine(monkeypatch):
    """An engine with the page's file and line added."""
    module = ModuleType(MODULE)
    exec(compile(DRAFTER, MODULE, "exec"), vars(module))  # noqa: S102
    monkeypatch.setitem(sys.modules, MODULE, module)
    [(name, preset)] = eval(f"{{{ENTRY}}}", {"Preset": Preset}).items()  # noqa: S307
    monkeypatch.setitem(PRESETS, name, preset)
    return tiny_engine()


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_documented_drafter_never_changes_the_output(engine, temperature):
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=110, ignore_eos=True)
    prompts = ["the end and the answer", "an inn on the river"]
    assert "bigram" in engine.presets
    for draft in ("bigram", "copy+bigram"):
        results = engine.generate(prompts, params, draft=draft)
        plain = engine.generate(prompts, params, draft="plain")
        assert [each.token_ids for each in results] == [each.token_ids for each in plain]
        assert sum(each.stats.accepted_by_source["bigram"] for each in results) > 0
        accepted = sum(each.stats.num_accepted_draft_tokens for each in results)
        assert accepted >= 10
        assert sum(each.stats.num_draft_tokens for each in results) > accepted + 10
