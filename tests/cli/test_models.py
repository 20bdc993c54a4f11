import json
import os
from pathlib import Path

import pytest

from graft.models.checkpoints import pretrained


def test_list_has_the_known_models_and_the_cache_folder(cli):
    listed = json.loads(cli("models", "--json").stdout)
    assert listed["home"] == os.environ["GRAFT_HOME"]
    rows = {row["name"]: row for row in listed["models"]}
    assert set(pretrained.KNOWN) <= set(rows)
    default = rows[pretrained.DEFAULT_MODEL]
    assert default["default"]
    assert default["download_bytes"] > 0


def test_table_names_the_default_model(cli):
    assert f"{pretrained.DEFAULT_MODEL} (default)" in cli("models").stdout


def test_installed_heads_are_listed_with_their_targets(cli):
    heads = {row["name"]: row for row in json.loads(cli("models", "--json").stdout)["heads"]}
    assert heads["smollm2-135m-eagle2"]["target"] == pretrained.DEFAULT_MODEL
    assert heads["smollm2-135m-eagle2"]["bytes"] > 1e6
    assert heads["smollm2-135m-longspec"]["cross_layers"] >= 1
    assert "draft head for smollm2-135m" in cli("models").stdout


def test_fetch_says_where_the_model_is(cli, monkeypatch):
    found = pretrained.Checkpoint("tiny", Path("/models/tiny"), "abc")
    monkeypatch.setattr(pretrained, "locate", lambda name: found)
    assert cli("models", "--fetch", "tiny").stderr == "tiny is in /models/tiny\n"
    printed = json.loads(cli("models", "--fetch", "tiny", "--json").stdout)
    assert printed == {"name": "tiny", "folder": "/models/tiny"}


@pytest.mark.parametrize("action", ["--fetch", "--remove"])
def test_an_unknown_name_is_refused_in_one_line(cli, action):
    done = cli("models", action, "smollm9")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_fetch_and_remove_together_are_a_usage_error(cli):
    assert cli("models", "--fetch", "a", "--remove", "b").exit_code == 2
