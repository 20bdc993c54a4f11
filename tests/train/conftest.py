"""A tiny target and chats to train with."""

import json

import pytest
from tiny import save_tiny

from graft.train.run import train
from graft.train.settings import Settings

WORDS = "the contract can be ended in writing and the other side has to answer within a month "


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory):
    """A tiny model's folder."""
    return save_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def chats(tmp_path_factory):
    """Conversations about nothing."""
    file = tmp_path_factory.mktemp("data") / "chats.jsonl"
    words = WORDS.split()
    with file.open("w") as lines:
        for number in range(80):
            turned = words[number % len(words) :] + words[: number % len(words)]
            turns = [
                {"from": "human", "value": f"Question {number}?"},
                {"from": "gpt", "value": " ".join(turned * 2)},
            ]
            lines.write(json.dumps({"conversations": turns}) + "\n")
    return file


@pytest.fixture
def settings(target_folder, chats, tmp_path, one_thread):
    return settings_in(tmp_path, target_folder, chats)


def settings_in(folder, target_folder, chats):
    """A short run whose head goes into the folder."""
    return Settings(
        kind="eagle2", data=(str(chats),), out=folder / "head", model=str(target_folder),
        length=64, batch=4, steps=8, learning_rate=3e-3, draft_vocabulary=64, held_out=0.05,
        evaluations=2, save_minutes=0, dtype="fp32", device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(target_folder, chats, tmp_path_factory, one_thread):
    """A finished run of the settings' eight steps."""
    settings = settings_in(tmp_path_factory.mktemp("finished"), target_folder, chats)
    assert train(settings, lambda line: None)
    return settings
