"""Every test has its own cache folder, so that none depends on what the machine has fetched."""

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path / "graft-home"))
