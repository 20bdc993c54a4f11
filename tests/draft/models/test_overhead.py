"""What guessing takes besides steps."""

from late import Late
from tiny import tiny_helper

from graft.draft.models.overhead import with_overhead


def test_a_cpus_draft_model_has_none():
    helper = tiny_helper()
    assert with_overhead(helper) is helper


def test_a_devices_is_what_a_level_takes_beyond_a_step():
    helper = with_overhead(tiny_helper(wrap=Late, cost=1e-9))
    assert 0 < helper.overhead < 1
    assert with_overhead(tiny_helper(wrap=Late, cost=1e9)).overhead == 0
    assert helper.model.arena.taken == 0
