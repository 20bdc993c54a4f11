"""The ablations of CASD and RASD: every variant gives plain decoding's text."""

from argparse import Namespace

import pytest
from tiny import tiny_draft_model, tiny_engine, tiny_network
from tiny_heads import tiny_head

import graft
from benchmarks.decode.apart import DUMMY, with_duplicates
from benchmarks.decode.fusion import FUSED, Runs, report
from graft.draft.heads.head import HeadDrafter
from graft.tree.draft_tree import from_paths
from graft.tree.fuse import union

PROMPT = [40, 41, 42, 50, 51, 60, 61, 40, 41, 42]
NAMES = {"tree", "casd", "casd-prompt", "rasd-pld", "rasd-pld-unpruned"} | {
    f"{name}-apart" for name in ("casd", "casd-prompt", "rasd-pld")
}


def runs_around(engine, monkeypatch, **options):
    """Runs of an engine, and the options it was loaded with."""
    loaded = {}
    monkeypatch.setattr(graft, "load", lambda *_, **given: loaded.update(given) or engine)
    names = ("model", "draft_model", "dtype", "device", "store")
    given = dict.fromkeys(names) | {"head": "auto", "load_options": {}} | options
    return Runs(Namespace(**given, max_tokens=24, temperature=0.0)), loaded


@pytest.fixture
def runs(monkeypatch):
    return runs_around(tiny_engine(draft_model=tiny_draft_model()), monkeypatch)[0]


def test_variants_answer_alike_and_count_accepted_lengths(runs):
    variants = runs.variants()
    assert variants.keys() == NAMES
    runs.engine.drafters.update(variants)
    rows = {name: runs.time(PROMPT, name) for name in ("plain", *variants)}
    assert len({row["output"] for row in rows.values()}) == 1
    for row in rows.values():
        lengths = row["lengths"]
        assert sum(lengths.values()) == row["steps"]
        assert sum(length * steps for length, steps in lengths.items()) == row["tokens"] - 1
    assert rows["plain"]["lengths"].keys() == {1}
    assert max(rows["casd"]["lengths"]) > 1


def test_variants_without_fusion_accept_the_same_with_more_nodes(runs):
    runs.engine.drafters.update(runs.variants())
    for name in ("casd", "rasd-pld"):
        fused, apart = (runs.time(PROMPT, each) for each in (name, f"{name}-apart"))
        assert apart["output"] == fused["output"]
        assert (apart["steps"], apart["by_source"]) == (fused["steps"], fused["by_source"])
        assert apart["nodes"] > fused["nodes"]


def test_dummies_have_the_shape_of_the_duplicates():
    network = from_paths(9, [[1, 2, 3], [1, 4], [5]], "model")
    found = from_paths(9, [[1, 2, 6], [1, 4, 7], [8]], "prompt")
    apart = with_duplicates(union(network, found), ("model",), vocabulary=100)
    assert len(apart) - 1 == len(network) - 1 + len(found) - 1
    depths = [*network.depths[1:].tolist(), *found.depths[1:].tolist()]
    assert apart.depths[1:].tolist() == sorted(depths)
    dummies = [path for n, path in enumerate(apart.paths()) if apart.source(n) == DUMMY]
    assert dummies == [[99], [99, 2], [99, 4]]
    assert len({tuple(path) for path in apart.paths()}) == len(apart)


def test_branch_below_a_node_of_the_network_has_its_own_path():
    network = from_paths(9, [[1, 2], [99]], "model")
    whole = union(network, from_paths(2, [[7, 8]], "prompt"), at=3)
    apart = with_duplicates(whole, ("model",), vocabulary=100)
    dummies = [path for n, path in enumerate(apart.paths()) if apart.source(n) == DUMMY]
    assert dummies == [[98], [98, 2]]
    assert with_duplicates(network, ("model",), vocabulary=100) is network


def test_tree_of_a_head_and_numbers_of_rasd_are_options(monkeypatch):
    network = tiny_network()
    engine = tiny_engine(network, heads=[tiny_head("eagle3", network)])
    given = {"head": "none", "load_options": {"rasd": {"length": 2}}}
    runs, loaded = runs_around(engine, monkeypatch, **given)
    assert isinstance(runs.variants()["tree"], HeadDrafter)
    assert (loaded["head"], loaded["rasd"]) == (None, graft.Rasd(length=2))


@pytest.mark.parametrize("name", [each for each in FUSED if each != "rasd-rest"])
def test_fused_trees_accept_no_less_than_their_parts(runs, name):
    sums = runs.replay(PROMPT, name)
    assert sums["below a part"] == 0
    parts = [sums["part 0 accepted"], sums["part 1 accepted"]]
    assert sums["union accepted"] >= max(parts) > 0


def test_report_shows_accepted_lengths(tmp_path, capsys, monkeypatch):
    row = {"part": "timed", "suite": "s", "prompt": 0, "tokens": 9, "steps": 4, "decode": 1.0}
    row |= {"nodes": 8, "accepted": 4, "output": 1}
    lengths = {"plain": {"1": 8}, "casd": {"1": 3, "11": 1}}
    cases = [{"variant": name, "prompt": number} for name in lengths for number in range(4)]
    rows = [{**row, **case, "lengths": lengths[case["variant"]]} for case in cases]
    monkeypatch.setattr("benchmarks.decode.fusion.read_results", lambda _: Namespace(rows=rows))
    report(tmp_path)
    printed = capsys.readouterr().out
    assert "| casd | 75% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 0% | 25% |" in printed
