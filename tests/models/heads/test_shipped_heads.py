"""The heads in the package: whole, small, and told of."""

import json

import pytest
from safetensors import safe_open

from graft.models.checkpoints.pretrained import KNOWN
from graft.models.heads.files import CARD, CONFIG, WEIGHTS, read_head
from graft.models.heads.installed import IN_PACKAGE, installed_heads
from graft.models.heads.load import find_heads

SHIPPED = ("smollm2-135m-eagle2", "smollm2-135m-longspec")
MOST_BYTES = 12_000_000
FINGERPRINT = "3a0868e5fedad1cd0cf9bdaab0e82ad1d719ecd5cec0122909741fbd4844d916"
LEFT_OUT = ("Spec-Bench", "QMSum", "Multi-News", "L-Eval", "HumanEval", "SQuAD", "Spider",
            "MedQA", "GSM8K", "MT-Bench-101", "EAGLE")  # fmt: skip
each_head = pytest.mark.parametrize("name", SHIPPED)


def test_these_are_shipped():
    assert [found.folder for found in installed_heads()] == [IN_PACKAGE / name for name in SHIPPED]


@each_head
def test_its_files_are_whole_narrow_and_small(name):
    folder = IN_PACKAGE / name
    assert {file.name for file in folder.iterdir()} == {CONFIG, WEIGHTS, CARD}
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST_BYTES
    with safe_open(folder / WEIGHTS, "pt") as file:
        dtypes = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
    assert {dtypes.pop("d2t"), dtypes.pop("t2d")} == {"I64", "BOOL"}
    assert set(dtypes.values()) == {"F16"}
    head = read_head(folder)
    assert f"{head.config.target}-{head.config.kind}" == name
    assert all(bool(parameter.isfinite().all()) for parameter in head.parameters())


@each_head
def test_it_belongs_to_the_default_model(name):
    """The fingerprint of what `make setup` converts; checked against the real one below."""
    assert read_head(IN_PACKAGE / name).config.fingerprint == FINGERPRINT


def test_the_default_model_finds_both(smollm2):
    assert list(find_heads("auto", smollm2.loaded)) == ["eagle2", "longspec"]
    assert smollm2.loaded.checkpoint.fingerprint == FINGERPRINT


@each_head
def test_its_card_says_what_it_is(name):
    card = (IN_PACKAGE / name / CARD).read_text()
    config = json.loads((IN_PACKAGE / name / CONFIG).read_text())["graft"]
    facts = config["training"]
    head = read_head(IN_PACKAGE / name)
    parameters = sum(parameter.numel() for parameter in head.parameters())
    for needed in (
        "license: apache-2.0", f"base_model: {KNOWN['smollm2-135m'].hub_id}", FINGERPRINT,
        head.config.kind, f"{parameters / 1e6:.1f}M parameters", f"{head.config.draft_vocabulary}",
        "ShareGPT V3", "17,671", "8,000", "3,584", "6,000", "enwik8", "LongBench v2",
        "13 words in a row",
        f"{facts['steps']} steps of {facts['rows_per_step']} rows", f"{facts['minutes']:.1f} min",
        f"Loss {facts['loss']}, learning rate", "H200", "Spec-Bench", "## Limits", "Apache-2.0",
        f"{facts['tokens_per_step']:.2f} tokens per step", *LEFT_OUT,
    ):  # fmt: skip
        assert needed in card
