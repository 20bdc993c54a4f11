"""`graft index`: datastores built, extended, merged, queried, damaged and interrupted."""

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import save_tiny, tiny_network, tiny_tokenizer

from graft.documents import records
from graft.match.pool import PoolOptions, Pools
from graft.match.pool_files import key_name
from graft.match.store_files import read_manifest
from graft.models.checkpoints.tokenizer import read_tokenizer, tokenizer_fingerprint

RAIN = "the rain in the plain is wet and the sand in the wind is dry and warm\n"
SEA = "an hour on the other shore and then the water was there again and again\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model's folder; only its tokenizer is read."""
    return save_tiny(tmp_path_factory.mktemp("tiny-model"), layers=1)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "rain.txt").write_text(RAIN)
    (folder / "again.md").write_text(RAIN)
    (folder / "page.html").write_text(f"<html><body><p>{SEA}</p></body></html>")
    return folder


@pytest.fixture
def index(cli):
    """Runs `graft index ... --json` and returns what it printed."""

    def run(*arguments):
        done = cli("index", *arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture
def store(index, files, model, tmp_path):
    """Two documents, for three files of which two are the same."""
    index("build", tmp_path / "store", files, "--model", model)
    return tmp_path / "store"


def refused(done):
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_build_skips_duplicates_and_info_describes_the_store(index, store, cli, model):
    state = index("info", store)
    assert (state["documents"], state["shards"], state["complete"]) == (2, 1, True)
    assert (state["model"], state["vocabulary"], state["id_bytes"]) == (str(model), 128, 2)
    assert (
        state["bytes"]
        == sum(
            file.stat().st_size
            for file in store.iterdir()
            if file.suffix in (".tokens", ".suffixes")
        )
        + 2 * 16
    )
    assert cli("index", "info", store).stdout.startswith(f"{store}: 2 documents, ")


def test_query_shows_the_continuations(index, store, cli):
    found = index("query", store, "--text", "where the rain in the plain")
    assert found["hits"] == found["sampled"] == 1
    assert (found["match_length"], found["match"]) == (12, " rain in the plain")
    longest = max(found["continuations"], key=lambda each: len(each["tokens"]))
    assert longest["text"].startswith(" is wet and")
    assert RAIN.startswith("the rain in the plain" + longest["text"])
    assert longest["count"] == 1
    assert found["microseconds"] > 0
    several = index("query", store, "--text", " in the")
    assert several["hits"] == 2
    assert {" p", " w"} <= {each["text"] for each in several["continuations"]}
    assert "occurrences: 2;" in cli("index", "query", store, "--text", " in the").stdout
    assert index("query", store, "--text", "0123456789")["continuations"] == []


def test_add_the_answers_of_a_pool(cli, index, store, model, tmp_path):
    tokenizer = read_tokenizer(str(model))
    pools = Pools(PoolOptions(tmp_path / "pool"), tokenizer_fingerprint(tokenizer))
    pools.add("", tokenizer.encode("the answer is on the river"))
    pools.add("", tokenizer.encode("the answer is on the river"))
    pools.add("key", tokenizer.encode("a secret of another key"))
    pools.close()
    before = index("info", store)["documents"]
    added = index("add", store, "--pool", tmp_path / "pool")["added"]
    assert (added["documents"], added["duplicates"]) == (1, 1)
    found = index("query", store, "--text", "the answer is on")
    assert found["continuations"][0]["text"].strip().startswith("t")
    assert index("info", store, "--check")["documents"] == before + 1
    [key] = [path for path in (tmp_path / "pool").glob("*/*") if path.name == key_name("key")]
    assert index("add", store, "--pool", key)["added"]["documents"] == 1
    assert "no answers" in refused(cli("index", "add", store, "--pool", tmp_path))
    assert "nothing to add" in refused(cli("index", "add", store))


def test_add_and_compact(index, store, tmp_path):
    lines = tmp_path / "more.jsonl.gz"
    talks = [
        {"talk": {"turns": [{"role": "user", "content": "is the sea warm?"}, {"content": SEA}]}},
        {"talk": {"turns": None}},
        {"talk": {"turns": "is the sand dry?"}},
    ]
    lines.write_bytes(gzip.compress("\n".join(map(json.dumps, talks)).encode()))
    added = index("add", store, lines, "--field", "talk.turns")
    assert (added["added"]["documents"], added["added"]["duplicates"]) == (2, 1)
    again = index("add", store, lines, "--field", "talk.turns")
    assert (again["added"]["documents"], again["added"]["duplicates"]) == (0, 3)
    assert again["shards"] == 2
    before = index("query", store, "--text", "is the s")
    merged = index("compact", store)
    assert (merged["shards"], merged["documents"]) == (1, 4)
    after = index("query", store, "--text", "is the s")
    assert before["match"] == after["match"] == " s"  # all of it stands in two places only
    assert before["hits"] == after["hits"] == 4
    for found in (before, after):  # equals in any order
        found["continuations"].sort(key=lambda each: each["tokens"])
    assert before["continuations"] == after["continuations"]
    assert index("info", store, "--check")["checked"]


def test_json_array_of_records_is_read_by_its_field(index, store, tmp_path):
    talks = [{"conversations": [{"from": "human", "value": "is it wet?"}, {"value": SEA}]}]
    (tmp_path / "talks.json").write_text(json.dumps(talks))
    added = index("add", store, tmp_path / "talks.json", "--field", "conversations")["added"]
    assert (added["documents"], added["duplicates"]) == (1, 1)
    assert index("query", store, "--text", "is it we")["hits"] == 1


def test_full_disk_names_the_stores_folder(cli, store, tmp_path, monkeypatch):
    """The same command works once there is space."""
    (tmp_path / "more.txt").write_text("the sea is there")
    before = read_manifest(store)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        line = refused(cli("index", "add", store, tmp_path / "more.txt"))
    assert f"no space left in {store}: 1 MB needed; free some or name another folder" in line
    assert "GRAFT_HOME" not in line
    assert read_manifest(store) == before
    assert cli("index", "add", store, tmp_path / "more.txt").exit_code == 0
    assert not list(store.glob(".tmp-*"))


def test_many_additions_are_merged_automatically(index, store, tmp_path):
    for at in range(9):
        (tmp_path / f"{at}.txt").write_text(f"the number {at} and no other\n")
        state = index("add", store, tmp_path / f"{at}.txt")
    assert state["documents"] == 11
    assert state["shards"] < 9


def test_parquet(index, cli, store, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    file = tmp_path / "more.parquet"
    parquet.write_table(pyarrow.table({"n": [1, 2], "body": ["is the sea warm?", None]}), file)
    assert "has no field 'text': there are n, body" in refused(cli("index", "add", store, file))
    assert index("add", store, file, "--field", "body")["added"]["documents"] == 1
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(cli("index", "add", store, file, "--field", "body"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', "line 2, is not JSON"),
        ('{"body": "a"}\n', "has no field 'text': there are body; name one with --field"),
        ('{"text": 3}\n', "is not text"),
        ("[1]\n", "it is not an object"),
    ],
)
def test_unreadable_records_are_refused(cli, store, tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_text(content)
    before = read_manifest(store)
    assert message in refused(cli("index", "add", store, tmp_path / "bad.jsonl"))
    assert read_manifest(store) == before


def test_wrong_folders_are_refused(cli, store, files, model, tmp_path):
    for command in ("info", "compact", "add", "query"):
        more = {"add": [files], "query": ["--text", "x"]}.get(command, [])
        assert "is not a datastore" in refused(cli("index", command, tmp_path / "none", *more))
    assert not (tmp_path / "none").exists()
    line = refused(cli("index", "build", store, files, "--model", model))
    assert "already" in line


def test_another_tokenizer_is_refused(cli, store, tmp_path):
    other = tmp_path / "other-model"
    tiny_network(layers=1).save_pretrained(other)
    changed = tiny_tokenizer().backend_tokenizer.to_str().replace('"<|unused1|>"', '"<|new|>"')
    tiny_tokenizer().save_pretrained(other)
    (other / "tokenizer.json").write_text(changed)
    line = refused(cli("index", "query", store, "--text", "x", "--model", other))
    assert "another one" in line


@pytest.mark.parametrize("ending", [".tokens", ".suffixes", ".documents"])
def test_damage_is_found(cli, store, ending):
    [file] = store.glob(f"*{ending}")
    whole = file.read_bytes()
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert cli("index", "info", store).exit_code == 0
    assert "checksum is wrong" in refused(cli("index", "info", store, "--check"))
    file.write_bytes(whole[:-1])
    assert f"bytes instead of {len(whole)}" in refused(cli("index", "info", store))
    file.unlink()
    assert "lacks" in refused(cli("index", "info", store))


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 99, "shards": []}'])
def test_damaged_manifest_is_refused(cli, store, content):
    (store / "store.json").write_text(content)
    line = refused(cli("index", "info", store))
    assert "build" in line


def test_suffixes_out_of_range_do_no_harm(index, store):
    [file] = store.glob("*.suffixes")
    file.write_bytes(b"\xff" * file.stat().st_size)
    assert index("query", store, "--text", RAIN)["continuations"] == []


DROPS = [f"{at} drops of rain and {at * at} in the sea\n" for at in range(80)]


def resumed(index, store, file, model):
    """Build again from a file with all DROPS, after a first attempt that was cut short."""
    state = index("info", store, "--check")
    assert 0 < state["documents"] < len(DROPS)
    assert not state["complete"]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in DROPS))
    done = index("build", store, file, "--model", model, "--shard-tokens", 500)
    assert (done["complete"], done["documents"]) == (True, len(DROPS))
    assert done["added"]["documents"] == len(DROPS) - state["documents"]
    assert index("query", store, "--text", "rain and 5929")["hits"] == 1
    assert not list(store.glob(".tmp-*"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
def test_killed_build_is_usable_and_resumes(index, model, tmp_path):
    """Fed through a pipe, so that it is in the middle of the work when it is killed."""
    store, pipe = tmp_path / "store", tmp_path / "feed.jsonl"
    os.mkfifo(pipe)
    words = ["build", store, pipe, "--model", model, "--shard-tokens", 500]
    process = subprocess.Popen([sys.executable, "-m", "graft", "index", *map(str, words)])
    with pipe.open("w") as feed:
        feed.writelines(json.dumps({"text": text}) + "\n" for text in DROPS[:50])
        feed.flush()
        _wait_for_a_shard(store, process)
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
    pipe.unlink()
    resumed(index, store, pipe, model)


def test_interrupted_build_says_how_to_resume(cli, index, model, tmp_path, monkeypatch):
    def interrupted(*_):
        yield from DROPS[:50]
        raise KeyboardInterrupt

    store = tmp_path / "store"
    words = ["index", "build", store, "feed", "--model", model, "--shard-tokens", 500]
    with monkeypatch.context() as patch:
        patch.setattr(records, "read_texts", interrupted)
        done = cli(*words)
    assert done.exit_code == 130
    stored = index("info", store)["documents"]
    assert done.stderr.startswith(f"{stored} documents are stored; run the same command again")
    resumed(index, store, tmp_path / "feed.jsonl", model)


def _wait_for_a_shard(store: Path, process: subprocess.Popen) -> None:
    """Until the manifest lists a shard or the process has ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if (store / "store.json").exists() and read_manifest(store).shards:
            return
        time.sleep(0.02)
    pytest.fail("no shard was written")
