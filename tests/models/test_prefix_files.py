"""Rows on disk: another process finds them; nothing wrong, foreign or broken is ever used."""

import logging
from functools import cache
from shutil import copytree

import pytest
from tiny import tiny_engine, tiny_network

from graft.errors import GraftError
from graft.models import prefix_files
from graft.models.arena import BLOCK
from graft.models.prefix_files import PrefixFiles, forget
from graft.sampling import SamplingParams

DOCUMENT = [3 + i * i % 120 for i in range(3 * BLOCK + 40)]
FIRST, SECOND = [*DOCUMENT, 5, 6, 7], [*DOCUMENT, 8, 9, 10, 11]
PARAMS = SamplingParams(temperature=0.9, seed=1, max_tokens=20, ignore_eos=True)
PLENTY = 1 << 30


def engine_with(folder, key="model", max_bytes=PLENTY, forward="panels", seed=0):
    """As in a new process: nothing in memory."""
    engine = tiny_engine(tiny_network(seed=seed), forward=forward)
    store = PrefixFiles(folder, key, max_bytes=max_bytes)
    engine.model.prefixes.use(max_rows=20 * BLOCK, store=store)
    return engine


def files(folder):
    return sorted(folder.rglob("*.safetensors"))


def remember(folder, tokens=FIRST, **options):
    engine = engine_with(folder, **options)
    engine.generate(tokens, PARAMS)
    engine.remember(tokens)


@pytest.fixture(scope="module")
def remembered(tmp_path_factory):
    """A folder where FIRST is kept; nobody changes it."""
    folder = tmp_path_factory.mktemp("remembered")
    remember(folder)
    return folder


@pytest.fixture
def store(remembered, tmp_path):
    """A copy for a test to use and damage."""
    return copytree(remembered, tmp_path / "store")


@cache
def answer_without_files():
    return tiny_engine().generate(SECOND, PARAMS).token_ids


@pytest.mark.parametrize("forward", ["panels", "lean", "hook"])
def test_another_process_finds_the_document(tmp_path, forward):
    remember(tmp_path, forward=forward)
    engine = engine_with(tmp_path, forward=forward)
    result = engine.generate(SECOND, PARAMS)
    assert result.stats.cached_tokens == 3 * BLOCK
    fresh = tiny_engine(tiny_network(), forward=forward)
    assert result.token_ids == fresh.generate(SECOND, PARAMS).token_ids
    again = engine.generate(FIRST, PARAMS)  # from memory now
    assert again.stats.cached_tokens == 3 * BLOCK


def test_rows_come_back_bit_for_bit(store):
    logged = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=5)
    with_files = list(engine_with(store).stream(SECOND, logged))
    assert [e.top for e in with_files] == [e.top for e in tiny_engine().stream(SECOND, logged)]


def test_a_text_that_only_begins_the_same_takes_the_beginning(store):
    other = [*DOCUMENT[: 2 * BLOCK + 9], *[7] * 300]
    result = engine_with(store).generate(other, PARAMS)
    assert result.stats.cached_tokens == 2 * BLOCK
    assert result.token_ids == tiny_engine().generate(other, PARAMS).token_ids


def test_rows_of_another_model_or_dtype_are_not_found(tmp_path):
    remember(tmp_path, key="one")
    assert engine_with(tmp_path, key="two").generate(SECOND, PARAMS).stats.cached_tokens == 0


def test_a_file_moved_into_another_models_folder_is_not_used(tmp_path, caplog):
    remember(tmp_path, key="one")
    (tmp_path / "one").rename(tmp_path / "two")
    engine = engine_with(tmp_path, key="two", seed=3)
    with caplog.at_level(logging.WARNING):
        assert engine.generate(SECOND, PARAMS).stats.cached_tokens == 0
    assert "another model" in caplog.text
    assert not files(tmp_path)


@pytest.mark.parametrize("place", [0.02, 0.5, 0.999])
def test_a_damaged_file_is_never_used(store, caplog, place):
    [file] = files(store)
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 0x10
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        result = engine_with(store).generate(SECOND, PARAMS)
    assert result.stats.cached_tokens == 0
    assert result.token_ids == answer_without_files()
    assert "damaged" in caplog.text
    assert not files(store)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 100])
def test_a_file_that_is_none_of_ours_is_never_used(store, content):
    [file] = files(store)
    file.write_bytes(content)
    assert engine_with(store).generate(SECOND, PARAMS).stats.cached_tokens == 0


def test_a_truncated_file_is_never_used(store):
    [file] = files(store)
    file.write_bytes(file.read_bytes()[:-1000])
    assert engine_with(store).generate(SECOND, PARAMS).stats.cached_tokens == 0


def test_nothing_is_written_twice_and_a_longer_text_replaces_a_shorter(store):
    [file] = files(store)
    stamp = file.stat().st_mtime_ns
    engine = engine_with(store)
    engine.generate(SECOND, PARAMS)
    engine.remember(SECOND)
    assert files(store) == [file]
    assert file.stat().st_mtime_ns > stamp  # used just now
    remember(store, [*DOCUMENT, *range(3, 120)] * 2)
    [longer] = files(store)
    assert longer != file


def test_the_least_recently_used_file_is_deleted_when_full(tmp_path):
    documents = [[3 + (i * 7 + n) % 120 for i in range(2 * BLOCK + 5)] for n in range(3)]
    remember(tmp_path, documents[0], key="one")
    size = files(tmp_path)[0].stat().st_size
    remember(tmp_path, documents[1], max_bytes=int(2.5 * size))
    assert len(files(tmp_path)) == 2
    engine_with(tmp_path, key="one").generate(documents[0], PARAMS)  # the first is newer now
    remember(tmp_path, documents[2], max_bytes=int(2.5 * size))
    assert [f.parent.name for f in files(tmp_path)].count("one") == 1
    assert len(files(tmp_path)) == 2
    remember(tmp_path, documents[1], max_bytes=size // 2)  # too large to be kept at all
    assert len(files(tmp_path)) == 2
    assert forget(tmp_path) == pytest.approx(2 * size, rel=0.01)
    assert not files(tmp_path)


def test_a_killed_write_leaves_the_old_files_as_they_were(store, monkeypatch):
    before = {file: file.read_bytes() for file in files(store)}

    def killed(tensors, path, about):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(prefix_files, "save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        remember(store, [*DOCUMENT, *range(3, 120)] * 2)
    assert {file: file.read_bytes() for file in files(store)} == before
    assert engine_with(store).generate(SECOND, PARAMS).stats.cached_tokens == 3 * BLOCK


def test_a_disk_that_refuses_costs_no_answer(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise GraftError("no space left")

    monkeypatch.setattr(prefix_files, "save_file", full)
    with caplog.at_level(logging.WARNING):
        remember(tmp_path)
    assert "not kept on disk: no space left" in caplog.text


def test_others_may_not_look_into_the_folder(tmp_path):
    remember(tmp_path / "prefixes")
    assert (tmp_path / "prefixes").stat().st_mode & 0o077 == 0
