"""Whole runs with a tiny target on the CPU: they learn, stop anywhere, and go on bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from daily import daily
from safetensors.torch import load_file
from tiny import tiny_network

from graft.errors import CheckpointError, InputError
from graft.models.checkpoints.pretrained import locate
from graft.models.heads.files import read_head
from graft.train.journal import read_notes
from graft.train.run import train
from graft.train.settings import Settings


def silent(line):
    pass


class After:
    """Asks to stop when so many steps were made."""

    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def continued(finished, settings):
    """The settings after their run, which tests may continue."""
    shutil.copytree(finished.out.parent, settings.out.parent, dirs_exist_ok=True)
    return settings


def assert_told(folder, last):
    """The card and the config say what was measured, and on what."""
    facts = json.loads((folder / "config.json").read_text())["graft"]["training"]
    assert facts["tokens_per_step"] == last["tokens_per_step"]
    assert facts["accepted"] == last["accepted"]
    card = (folder / "README.md").read_text()
    rates = ", ".join(f"{rate:.2f}" for rate in last["accepted"])
    measured = (f"{last['tokens_per_step']:.2f} tokens per step", rates, facts["hardware"])
    for told in (*measured, "One layer of 64 channels", "60 steps of 4 rows", "## Limits"):
        assert told in card


@pytest.mark.parametrize("kind", daily(["eagle3", "eagle2", "longspec"], "eagle3", "longspec"))
def test_a_run_lowers_the_loss_and_saves_a_head(settings, kind):
    settings = replace(settings, kind=kind, steps=60, save_minutes=10)
    assert train(settings, silent)
    log = read_notes(settings.work / "log.jsonl")
    losses = [note["loss"] for note in log if "loss" in note]
    assert losses[-1] > 0
    measured = [note["tokens_per_step"] for note in log if "tokens_per_step" in note]
    assert len(measured) == 2
    assert measured[-1] > 1.3  # a tiny target mostly looks at its last token
    head = read_head(settings.out, locate(settings.model), tiny_network().config)
    assert head.config.draft_vocabulary == 64
    assert_told(settings.out, [note for note in log if "accepted" in note][-1])
    assert not list(settings.out.parent.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("kind", "micro_batch", "layers"),
    daily(
        [
            ("eagle3", 3, 1),
            ("eagle2", 0, 1),
            ("eagle2", 3, 1),
            ("longspec", 0, 1),
            ("longspec", 3, 1),
            ("longspec", 3, 2),
        ],
        ("eagle3", 3, 1),  # a killed run of eagle2 is resumed below
    ),
)
def test_a_resumed_run_gives_the_same_bits(settings, kind, micro_batch, layers):
    settings = replace(settings, kind=kind, micro_batch=micro_batch, cross_layers=layers)
    straight = replace(settings, out=settings.out.with_name("straight"))
    assert train(straight, silent)
    assert not train(settings, silent, After(3))
    assert not train(settings, silent, After(2))
    assert train(settings, silent)
    ours, theirs = (load_file(s.out / "model.safetensors") for s in (settings, straight))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.slow
def test_micro_batches_add_up_to_the_batch(settings):
    whole = replace(settings, noise=0.0, steps=3)
    parts = replace(whole, micro_batch=1, out=settings.out.with_name("parts"))
    train(whole, silent)
    train(parts, silent)
    ours, theirs = (load_file(s.out / "model.safetensors") for s in (whole, parts))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


KILLED = """
import os, signal, sys
from pathlib import Path
from graft.train import loop
from graft.cli.main import main
save, made = loop.save_state, []
def save_then_die(*given):
    made.append(save(*given))
    if len(made) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
loop.save_state = save_then_die
sys.argv[0] = "graft"
main()
"""


def command(settings):
    return [
        "train", "eagle2", "--data", *settings.data, "--out", str(settings.out),
        "--model", settings.model,
        "--length", "64", "--batch", "4", "--steps", "8", "--learning-rate", "3e-3",
        "--draft-vocabulary", "64", "--held-out", "0.05", "--evaluations", "2", "--save-minutes",
        "0", "--dtype", "fp32", "--device", "cpu",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(settings, finished):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", KILLED, *command(settings)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    said = []
    assert train(settings, said.append)
    assert any("resuming after step 3" in line for line in said)
    ours, theirs = (load_file(s.out / "model.safetensors") for s in (settings, finished))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.slow
def test_two_processes_train_like_one(settings):
    pytest.importorskip("accelerate")
    alone = replace(settings, noise=0.0, steps=3)
    train(alone, silent)
    together = replace(alone, out=settings.out.with_name("together"))
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    options = [*command(together), "--noise", "0"]
    options[options.index("--steps") + 1] = "3"
    ended = subprocess.run(
        [sys.executable, *launch, "-m", "graft", *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("tokenising and packing") == 1
    ours, theirs = (load_file(s.out / "model.safetensors") for s in (alone, together))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-4)


def test_a_finished_run_can_be_extended(continued):
    assert train(replace(continued, steps=10), silent)
    assert "10 steps" in (continued.out / "README.md").read_text()


def test_a_damaged_checkpoint_is_an_error(continued):
    checkpoint = continued.work / "state.pt"
    for content in (b"", b"novel", checkpoint.read_bytes()[:-2000]):
        checkpoint.write_bytes(content)
        with pytest.raises(CheckpointError, match="delete it to start again"):
            train(continued, silent)


def test_other_settings_do_not_resume(continued):
    with pytest.raises(InputError, match="started with --length 64, not 32"):
        train(replace(continued, length=32), silent)


def test_a_run_can_start_from_a_head(settings, finished):
    again = replace(settings, out=settings.out.with_name("again"), start=finished.out, steps=1)
    assert train(again, silent)
    with pytest.raises(InputError, match="is a head of kind eagle2"):
        train(replace(again, kind="longspec", out=settings.out.with_name("other")), silent)


def test_a_checkpoint_older_than_an_option_resumes(settings, monkeypatch):
    whole = Settings.identity
    with monkeypatch.context() as patch:
        patch.setattr(
            Settings,
            "identity",
            lambda self: {n: v for n, v in whole(self).items() if n != "cross_layers"},
        )
        train(replace(settings, kind="longspec", steps=2), silent)
    longer = replace(settings, kind="longspec", steps=3)
    assert train(longer, silent)
    with pytest.raises(InputError, match="started with --cross-layers 1, not 2"):
        train(replace(longer, cross_layers=2), silent)


@pytest.mark.slow
def test_a_head_of_one_cross_layer_can_be_widened_to_two(settings):
    first = replace(settings, kind="longspec", steps=6)
    train(first, silent)
    wider = replace(
        first, out=settings.out.with_name("wider"), start=first.out, cross_layers=2, steps=2
    )
    assert train(replace(wider, learning_rate=1e-9), silent)
    config, before = (json.loads((s.out / "config.json").read_text()) for s in (wider, first))
    assert config["graft"]["cross_layers"] == 2
    assert config["graft"]["training"]["accepted"] == pytest.approx(
        before["graft"]["training"]["accepted"], abs=0.01
    )
    assert "target's last 2 layers" in (wider.out / "README.md").read_text()
    narrow = replace(wider, out=settings.out.with_name("narrow"), start=wider.out, cross_layers=1)
    with pytest.raises(InputError, match="attends to 2 layers; use --cross-layers 2"):
        train(narrow, silent)


@pytest.mark.parametrize("plain", [False, True])
def test_longspec_can_be_trained_as_in_its_paper(settings, plain):
    """With anchor-offset positions, and a twin with plain ones."""
    paper = replace(settings, kind="longspec", paper=True, steps=2, vanilla_positions=plain)
    assert (paper.loss, paper.cross_layers, paper.draft_vocabulary) == ("token", 1, 0)
    assert train(paper, silent)
    config = read_head(paper.out).config
    assert (config.final_norm, config.cross_layers, config.draft_vocabulary) == (False, 1, 128)


def test_an_eagle3_head_may_be_narrow_share_the_output_layer_and_have_eight_bits(settings):
    small = replace(
        settings, kind="eagle3", inner=32, tied_output=True, unroll=2, steps=2, dtype="int8"
    )
    assert train(small, silent)
    weights = load_file(small.out / "model.safetensors")
    assert weights["layers.0.mlp.up_proj.weight"].shape == (32, 64)
    assert weights["layers.0.mlp.up_proj.weight"].dtype == torch.int8
    assert "lm_head.weight" not in weights
    again = replace(small, out=settings.out.with_name("again"), start=small.out, steps=3)
    assert train(again, silent)
    assert read_head(again.out).config.inner == 32


def test_more_cross_layers_than_the_target_has_are_an_error(settings):
    with pytest.raises(InputError, match="--cross-layers must be at most 2, the layers of"):
        train(replace(settings, kind="longspec", cross_layers=3), silent)
    assert not settings.work.exists()


def test_a_folder_that_is_not_a_head_is_not_replaced(settings):
    settings.out.mkdir()
    (settings.out / "novel.txt").write_text("Chapter 1")
    with pytest.raises(InputError, match="is not a draft head"):
        train(settings, silent)


def test_too_little_data_is_an_error_of_one_line(settings, tmp_path):
    file = tmp_path / "one.txt"
    file.write_text("Too short.")
    with pytest.raises(InputError, match="too little training data"):
        train(replace(settings, data=(str(file),)), silent)
    with pytest.raises(InputError, match=r"no.txt does not exist"):
        train(replace(settings, data=("no.txt",)), silent)


@pytest.mark.slow
def test_minutes_end_a_run_too(settings):
    assert train(replace(settings, steps=0, minutes=0.02), silent)
    assert read_notes(settings.work / "log.jsonl")[-1]["learning_rate"] == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"kind": "medusa"}, "unknown kind 'medusa'"),
        ({"loss": "l2"}, "unknown --loss 'l2'"),
        ({"data": ()}, "no training data"),
        ({"minutes": 3.0}, "either --steps N or --minutes M"),
        ({"steps": 0}, "either --steps N or --minutes M"),
        ({"length": 3}, "--length must be at least 16"),
        ({"kind": "longspec", "cross_layers": 0}, "--cross-layers must be at least 1"),
        ({"kind": "longspec", "cross_layers": -2}, "--cross-layers must be at least 1"),
        ({"cross_layers": 2}, "--cross-layers is for longspec"),
        ({"held_out": 0.0}, "--held-out must be above 0"),
        ({"tied_output": True}, "--tied-output is for eagle3"),
        ({"paper": True}, "--paper is for longspec"),
        ({"kind": "answers"}, "--regenerate N"),
    ],
)
def test_invalid_settings_are_errors(settings, change, line):
    with pytest.raises(InputError, match=line):
        replace(settings, **change)
