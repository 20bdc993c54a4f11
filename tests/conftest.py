"""Fixtures for all tests; each test has its own cache folder."""

import gc
import os
from importlib.util import find_spec
from uuid import uuid4

from graft.machine import SHORT_SPINS

os.environ.setdefault(*SHORT_SPINS)  # two workers share the cores; read when torch is imported

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from graft.home import home  # noqa: E402

if not torch.cuda.is_available():  # Triton reads this when it is first imported
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile(
    "graft", deadline=None, max_examples=30
)  # a busy machine must not fail a test
settings.load_profile("graft")

USERS_HOME = home()  # before any test changes it


def pytest_collection_finish():
    """Exempt the imported packages from garbage collection: gc.collect() takes 0.5 s over them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """Not in `tmp_path`: making one takes longer than most tests."""
    monkeypatch.setenv("GRAFT_HOME", str(tmp_path_factory.getbasetemp() / f"home-{uuid4().hex}"))


@pytest.fixture
def files(tmp_path, request):
    """A folder with the test module's TEXTS, by the names of files."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in request.module.TEXTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session", autouse=True)
def shortened_without_threads():
    """Drafts from a short prompt begin at once, not when a thread has finished."""
    from short_prompts import Inline

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graft.draft.short_context.short_prompt.ThreadPoolExecutor", Inline)
        yield


@pytest.fixture(scope="session", autouse=True)
def fast_interpreter():
    """Patches Triton's interpreter once; it would otherwise patch itself at every launch."""
    if torch.cuda.is_available() or not find_spec("triton"):
        yield
        return
    from interpreted import patch_once

    with pytest.MonkeyPatch.context() as patch:
        patch_once(patch)
        yield


@pytest.fixture(scope="module")
def one_thread():
    """Tiny networks are faster on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_buckets(monkeypatch):
    """Steps on a GPU in few sizes: interpreted kernels take long over padding."""
    from graft.models import forward_graphed

    monkeypatch.setattr(forward_graphed, "BUCKETS", (1, 2, 4, 8))
    monkeypatch.setattr(forward_graphed, "LARGE", 16)
    monkeypatch.setattr(forward_graphed, "TASKS", 4)
    monkeypatch.setattr(forward_graphed, "MIXED_TASKS", 8)
    monkeypatch.setattr(forward_graphed.GraphedForward, "sizes", (1, 2, 4, 8, 12))


def load_smollm2(dtype):
    """The default model from the user's cache, where `make setup` put it."""
    from graft.assemble.loading import load
    from graft.models.checkpoints.pretrained import installed

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAFT_HOME", str(USERS_HOME))
        patch.setenv("GRAFT_COSTS", "reference")
        if not any(model.name == "smollm2-135m" and model.folder for model in installed()):
            pytest.skip(f"smollm2-135m is not in {USERS_HOME}; run make setup")
        use_cores()
        engine = load("smollm2-135m", dtype=dtype)
        assert [*engine.drafters.resources.heads.values()]  # loaded, with costs that are not timed
        return engine


@pytest.fixture(scope="session")
def loaded_smollm2():
    return load_smollm2("fp32")


@pytest.fixture(scope="session")
def loaded_smollm2_int8():
    return load_smollm2("int8")


@pytest.fixture
def smollm2(loaded_smollm2):
    """The default model in fp32, with this process's share of the cores."""
    use_cores()
    return loaded_smollm2


@pytest.fixture
def smollm2_int8(loaded_smollm2_int8):
    """The same with int8 weights."""
    use_cores()
    return loaded_smollm2_int8


def use_cores():
    """Give torch and numba this process's share of the cores; more threads would only spin."""
    from graft.models.forward_panels import use_threads

    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    use_threads()
