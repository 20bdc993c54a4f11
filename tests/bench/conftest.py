import fake_engines
import pytest


@pytest.fixture
def fake_workers(tmp_path, monkeypatch):
    return fake_engines.fake_workers(tmp_path, monkeypatch)
