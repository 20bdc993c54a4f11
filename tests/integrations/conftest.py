"""Tiny models for the transformers drop-in, each with the forward its name asks for."""

import pytest
from daily import daily
from hf_cases import KINDS, make

from graft.models import forward_choice


@pytest.fixture(autouse=True)
def reference_costs(monkeypatch):
    monkeypatch.setenv("GRAFT_COSTS", "reference")


@pytest.fixture(autouse=True)
def forward_by_name(monkeypatch):
    """Which forward is faster differs between machines; here a model's name decides."""
    monkeypatch.setattr(
        forward_choice, "panels_are_faster", lambda config, dtype: config.name_or_path != "lean"
    )


@pytest.fixture(params=daily(KINDS, "panels", "hook"))
def model(request):
    return make(request.param)


@pytest.fixture(scope="module")
def made():
    """Models for tests that change nothing, prepared once."""
    return {kind: make(kind) for kind in KINDS}


@pytest.fixture(params=daily(KINDS, "panels", "hook"))
def unchanged(request, made):
    return made[request.param]
