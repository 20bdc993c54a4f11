"""Numbers of a request behind a preset's name: `sd?draft_tokens=1`."""

import pytest
from short_prompts import ends_only
from tiny import tiny_draft_model, tiny_engine, tiny_network

from benchmarks.decode.graft_variants import SuiteEngine, graft_variant
from graft.bench.measure import Loop, Measurement, PromptTokens
from graft.draft.models.chains import Chains
from graft.draft.options import Casd
from graft.errors import InputError

PROMPT = [3 + (7 * i) % 120 for i in range(300)]


def answer(name, engine):
    loop = Loop(None, None, None, max_tokens=64, end_tokens=[])
    return engine.ask(loop.request(Measurement(graft_variant(name), (PromptTokens(7, PROMPT),))))


def test_numbers_reach_the_drafter_and_the_text_stays():
    models = {"draft_model": tiny_draft_model(), "shorten": ends_only}
    engine = SuiteEngine(tiny_engine(tiny_network(), **models, chains=Chains(gamma=6)))
    plain, whole = answer("plain", engine), answer("sd", engine)
    short, dialled = answer("sd?draft_tokens=2", engine), answer("sd@0.9?draft_tokens=2", engine)
    assert plain["token_ids"] == whole["token_ids"] == short["token_ids"] == dialled["token_ids"]
    assert max(map(int, whole["accepted_by_position"])) > 2
    assert max(map(int, short["accepted_by_position"])) == 2
    assert max(map(int, dialled["accepted_by_position"])) == 2
    confident = answer("sd?confidence=1.0", engine), answer("sd@0.9?confidence=1.0", engine)
    assert all(each["drafted"] < whole["drafted"] / 2 for each in confident)
    with pytest.raises(InputError, match="casd needs"):
        answer("sd?casd.length=4", engine)


def test_variant_with_numbers():
    found = graft_variant("rapid@rapid:20?retrieved=2048&casd.length=4&casd.matches=3")
    assert found.name == "rapid@rapid:20?retrieved=2048&casd.length=4&casd.matches=3"
    assert (found.method, found.engine) == ("rapid", "graft@rapid:20")
    assert found.options == {"retrieved": 2048, "casd": Casd(matches=3, length=4)}
    assert graft_variant("rapid?retrieved=capped").options == {"retrieved": "capped"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sd?depth=3", "'depth' is no number of a request"),
        ("casd?casd.size=3", "'casd' takes an object of matches, length"),
        ("casd?casd.length=0", "length must be between 1 and 32"),
    ],
)
def test_wrong_numbers(name, message):
    with pytest.raises(InputError, match=message):
        graft_variant(name)
