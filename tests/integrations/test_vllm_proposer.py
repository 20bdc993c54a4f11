"""The proposer in a model runner shaped like vLLM's: rows of tokens, lengths, requests by name."""

import fake_vllm
import pytest
from fake_vllm import Engine, config

from graft.errors import InputError
from graft.integrations.vllm import Proposer


class Clock:
    """A step takes a second and a little for every row."""

    now = 0.0

    def __call__(self):
        return self.now


DOCUMENT = list(range(10, 60))


@pytest.fixture(autouse=True)
def runner_class(monkeypatch):
    return fake_vllm.install(monkeypatch)


@pytest.fixture
def started(runner_class):
    """An engine with requests of these prompts."""

    def start(settings=None, **prompts):
        engine = Engine(runner_class, Proposer(settings or config(), Clock()))
        for name, prompt in prompts.items():
            engine.start(name, prompt)
        return engine

    return start


def texts_of(engine):
    return engine.runner.drafter._texts


def test_a_copy_is_drafted_and_a_new_text_is_not(started):
    drafts = started(a=[*DOCUMENT, 1, 10, 11], b=range(100, 150)).step(a=[12], b=[7])
    assert drafts["a"][:4] == [13, 14, 15, 16]
    assert drafts["b"] == []


def test_a_prefilling_row_gets_no_draft(started):
    assert started(a=[*DOCUMENT, 10, 11]).step(a=[]) == {"a": []}


def test_probable_copies_get_long_drafts_and_improbable_ones_short(started):
    engine = started(a=[*DOCUMENT, 1, 10])
    first = engine.step(a=[11])
    for token in range(12, 30):
        later = engine.step(a=[token])
    assert len(later["a"]) == 8 >= len(first["a"])


def test_no_draft_exceeds_the_context(started):
    engine = started(config(max_model_len=56), a=[*DOCUMENT, 1, 10, 11])
    assert engine.step(a=[12]) == {"a": [13]}  # 54 tokens, one drafted, one sampled behind it


def test_rows_may_move_in_the_batch(started):
    engine = started(a=[*DOCUMENT, 1, 10], b=[*DOCUMENT[::-1], 1, 59])
    engine.step(a=[11], b=[58])
    drafts = engine.step(b=[57], a=[12])
    assert (drafts["b"][:2], drafts["a"][:2]) == ([56, 55], [13, 14])


def test_a_preempted_request_is_not_indexed_again(started):
    engine = started(a=[*DOCUMENT, 1, 10], b=range(100, 150))
    engine.step(a=[11])
    text = texts_of(engine)["a"]
    for _ in range(100):
        engine.step(b=[7])
    assert engine.step(a=[12])["a"][:2] == [13, 14]
    assert texts_of(engine)["a"] is text


def test_finished_requests_are_dropped(started):
    engine = started(a=[*DOCUMENT, 1, 10], b=range(100, 150))
    engine.step(a=[11], b=[7])
    engine.end("a")
    engine.step(b=[7])
    assert [*texts_of(engine)] == ["b"]


def test_a_name_that_is_used_again_is_another_request(started):
    engine = started(a=[*DOCUMENT, 1, 10])
    engine.step(a=[11])
    engine.end("a")
    engine.start("a", [*DOCUMENT[::-1], 1, 59])
    assert engine.step(a=[58])["a"][:2] == [57, 56]


def test_a_prompt_that_is_replaced_is_indexed_again(started):
    """As in vLLM's streaming sessions: the state of the request stays."""
    engine = started(a=[*DOCUMENT, 1, 10])
    engine.step(a=[11])
    engine.texts["a"] = [*DOCUMENT[::-1], 1, 59]
    assert engine.step(a=[58])["a"][:2] == [57, 56]


def test_equal_requests_each_get_a_draft(started):
    engine = started(a=[*DOCUMENT, 1, 10], b=[*DOCUMENT, 1, 10])
    engine.step(a=[11], b=[11])
    drafts = engine.step(a=[12], b=[30])
    assert (drafts["a"][:2], drafts["b"][:1]) == ([13, 14], [31])


def test_expensive_rows_shorten_drafts(runner_class):
    def drafted(row_seconds):
        clock = Clock()
        engine, rows, total = Engine(runner_class, Proposer(config(), clock)), 1, 0
        engine.start("a", [*DOCUMENT, 1, *DOCUMENT[::2], 10])
        for token in [11, 12, 40, 41, 20, 21, 30, 31, 50, 51, 15, 16, 45, 46] * 3:
            clock.now += 1.0 + row_seconds * rows
            draft = engine.step(a=[token])["a"]
            rows, total = 1 + len(draft), total + len(draft)
        return total

    assert drafted(0.0) > drafted(1.0)


def test_an_unknown_option_is_an_error():
    with pytest.raises(InputError, match="unknown graft option 'store'; options: stores"):
        Proposer(config(graft={"store": "x"}))


def test_a_folder_that_is_not_a_datastore_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: None)
    monkeypatch.setattr(
        "graft.models.checkpoints.tokenizer.tokenizer_fingerprint", lambda tokenizer: "x"
    )
    with pytest.raises(InputError, match="is not a datastore"):
        Proposer(config(graft={"stores": str(tmp_path)}))


def test_an_untested_vllm_is_refused_with_one_line(monkeypatch):
    fake_vllm.install(monkeypatch, "0.28.1")
    with pytest.raises(InputError, match="tested with vLLM 0.24.x and 0.32.x, this is 0.28.1"):
        Proposer(config())


def test_the_runner_is_wrapped_once(runner_class, started):
    started()
    wrapped = runner_class.propose_draft_token_ids
    started()
    assert runner_class.propose_draft_token_ids is wrapped


def test_a_runner_with_another_proposer_works_as_before(runner_class, started):
    class Other:
        def propose(self, sampled, *_, **__):
            return [[1] for _ in sampled]

    started()
    engine = Engine(runner_class, Other())
    engine.start("a", [1, 2])
    assert engine.step(a=[3]) == {"a": [1]}


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_of_tensor_parallel_make_the_same_drafts(started, ranks):
    """They get the same tokens, and here the same step times."""
    engines = [
        started(config(rank=rank, ranks=ranks), a=[*DOCUMENT, 1, 10], b=[*DOCUMENT[::-1], 59])
        for rank in range(ranks)
    ]
    for a, b in zip(range(11, 31), range(58, 38, -1), strict=True):
        drafts = [engine.step(a=[a], b=[b]) for engine in engines]
        assert all(each == drafts[0] for each in drafts)
    assert any(drafts[0].values())


def test_ranks_with_other_step_times_draft_a_part_of_the_same_chain(runner_class):
    """vLLM verifies one rank's drafts on all; the others may be shorter or longer."""
    clocks = [Clock(), Clock()]
    engines = [Engine(runner_class, Proposer(config(), clock)) for clock in clocks]
    for engine in engines:
        engine.start("a", [*DOCUMENT, 1, *DOCUMENT[::2], 10])
    for token in [11, 12, 40, 41, 20, 21, 30, 31, 50, 51, 15, 16, 45, 46]:
        short, long = sorted((engine.step(a=[token])["a"] for engine in engines), key=len)
        assert long[: len(short)] == short
        clocks[0].now += 1.0
        clocks[1].now += 1.0 + 2.0 * len(long)
