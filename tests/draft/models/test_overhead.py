"""The overhead of a draft level."""

from late import Late
from tiny import tiny_draft_model

from graft.draft.models.overhead import with_overhead


def test_cpu_draft_model_has_no_overhead():
    draft_model = tiny_draft_model()
    assert with_overhead(draft_model) is draft_model


def test_device_overhead_is_a_levels_time_without_its_step():
    draft_model = with_overhead(tiny_draft_model(wrap=Late, cost=1e-9))
    assert 0 < draft_model.overhead < 1
    assert with_overhead(tiny_draft_model(wrap=Late, cost=1e9)).overhead == 0
    assert draft_model.model.arena.taken == 0
