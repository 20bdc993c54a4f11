"""Which versions of other engines the plug-ins accept."""

import pytest

from graft.errors import InputError
from graft.integrations.versions import ANYWAY, SGLANG, VLLM_DEVICE, VLLM_HOST


@pytest.mark.parametrize(
    ("plug_in", "version", "accepted"),
    [
        (VLLM_HOST, "0.24.0", True),
        (VLLM_HOST, "0.32.0+cpu", True),
        (VLLM_HOST, "0.3.2", False),
        (VLLM_HOST, "1.0.0", False),
        (VLLM_DEVICE, "0.24.1", True),
        (VLLM_DEVICE, "0.32.0", False),
        (SGLANG, "0.5.23", True),
        (SGLANG, "0.5.23.post1", True),
        (SGLANG, "0.6.0rc1", False),
    ],
)
def test_only_tested_versions_are_accepted(plug_in, version, accepted, monkeypatch):
    if not accepted:
        with pytest.raises(InputError, match=f"is tested with .*, this is {version[:4]}") as error:
            plug_in.check(version)
        assert all(f"{tested}.x" in str(error.value) for tested in plug_in.tested)
        assert len(str(error.value).splitlines()) == 1
        monkeypatch.setenv(ANYWAY, "1")
    plug_in.check(version)
