import pytest

from graft.bench.encode import Encoded, Workload
from graft.bench.plan import turns
from graft.bench.systems import PEERS, graft_system
from graft.bench.task import Prompt
from graft.errors import InputError

SYSTEMS = [graft_system("plain"), graft_system("auto"), PEERS["hf-pld"]]


def workload(count):
    encoded = [Encoded(Prompt(n, f"kind {n % 2}", "text"), [n]) for n in range(count)]
    return Workload({0: encoded}, [0], 100, [], None)


def order(settings, count=4):
    return [(t.numbers, t.system.name) for t in turns(settings, SYSTEMS, workload(count))]


def test_every_prompt_is_given_to_all_systems_before_the_next_and_who_begins_changes(settings):
    found = order(settings())
    assert [numbers for numbers, _ in found] == [[n] for n in range(4) for _ in range(3)]
    first = ["plain", "auto", "hf-pld"]
    rotated = [first, first[1:] + first[:1], first[2:] + first[:2], first]
    assert [name for _, name in found] == [name for turn in rotated for name in turn]


def test_repeats_begin_with_another_system(settings):
    found = [name for _, name in order(settings(repeats=2), count=1)]
    assert found == ["plain", "auto", "hf-pld", "auto", "hf-pld", "plain"]


def test_groups_are_whole_and_go_only_to_those_who_take_several(settings):
    found = order(settings(batches=(2,)), count=5)
    assert {tuple(numbers) for numbers, _ in found} == {(0, 1), (2, 3)}
    assert {name for _, name in found} == {"plain", "auto"}


def test_no_more_groups_than_asked_for(settings):
    found = list(turns(settings(batches=(1, 2), groups=1), SYSTEMS[:2], workload(4)))
    assert [(t.numbers, t.system.name) for t in found] == [
        ([0], "plain"), ([0], "auto"), ([0, 1], "plain"), ([0, 1], "auto"),
    ]  # fmt: skip


def test_cells_come_one_after_the_other(settings):
    found = list(turns(settings(batches=(1, 2), temperatures=(0, 1)), SYSTEMS, workload(2)))
    cells = list(dict.fromkeys((t.batch, t.temperature) for t in found))
    assert cells == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert found[-1].category == "mixed"


def test_every_context_has_its_own_prompts(settings):
    prompts = workload(3).prompts[0]
    lengths = Workload({512: prompts, 1024: prompts[:1]}, [0], 2000, [], None)
    found = list(turns(settings(), SYSTEMS[:1], lengths))
    assert [(t.context, t.numbers) for t in found] == [
        (512, [0]),
        (512, [1]),
        (512, [2]),
        (1024, [0]),
    ]
    assert len({t.key for t in found}) == 4


def test_too_few_prompts_for_a_batch_are_refused(settings):
    with pytest.raises(InputError, match="--batch 8 needs 8 prompts, but 4 are chosen"):
        order(settings(batches=(8,)))


def test_vllm_has_a_process_for_every_batch_size_and_graft_one_for_all():
    assert graft_system("auto").process == graft_system("plain").process == "graft"
    assert PEERS["vllm"].process == "vllm"
    assert PEERS["vllm-ngram"].process == "vllm-ngram"
