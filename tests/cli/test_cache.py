"""The KV cache of documents on disk."""

import json

import pytest

from graft.cli.options import DISK_CACHE
from graft.home import home


def test_documents_are_cached_after_the_answer(cli, engine, document):
    assert cli("run", "How fast?", "--doc", document).exit_code == 0
    assert engine.remembered == [engine.calls[0][0]]
    assert engine.loaded[0][1]["disk_cache"] == DISK_CACHE


@pytest.mark.parametrize(
    "words", [["How fast?"], ["How fast?", "--doc", "contract.md", "--no-cache"]]
)
def test_nothing_is_cached_without_documents_or_with_no_cache(
    cli, engine, document, monkeypatch, words
):
    monkeypatch.chdir(document.parent)
    assert cli("run", *words).exit_code == 0
    assert engine.remembered == []
    assert engine.loaded[0][1]["disk_cache"] == 0


def test_compare_disables_the_caches(cli, engine, document):
    assert cli("run", "How fast?", "--doc", document, "--compare").exit_code == 0
    options = engine.loaded[0][1]
    assert (options["prefix_cache"], options["disk_cache"]) == (0, 0)


def test_chat_caches_its_documents_after_the_first_turn(cli, engine, document):
    cli("chat", "--doc", document, stdin="How fast?\nReally?\n")
    assert engine.remembered == [engine.calls[0][0]]


def test_footer_reports_cached_prompt_tokens(cli, engine, document, monkeypatch):
    stream = engine.stream

    def cached(*args, **options):
        result = stream(*args, **options)
        result.result.stats.cached_tokens = 64
        return result

    monkeypatch.setattr(engine, "stream", cached)
    done = cli("run", "How fast?", "--doc", document)
    assert "64 of 100 prompt tokens cached" in done.stderr


def test_the_cache_is_shown_and_cleared(cli):
    folder = home() / "prefixes" / "key"
    folder.mkdir(parents=True)
    (folder / "text.safetensors").write_bytes(b"x" * 3_000_000)
    shown = cli("cache")
    assert shown.stdout.startswith("KV cache of 1 prompt, 3 MB, in")
    cleared = json.loads(cli("cache", "--clear", "--json").stdout)
    assert (cleared["texts"], cleared["bytes"], cleared["cleared"]) == (1, 3_000_000, True)
    assert json.loads(cli("cache", "--json").stdout)["texts"] == 0
    assert not folder.exists()
