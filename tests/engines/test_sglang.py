"""SGLang's own plug-in loader, tree builder and verifier around Graft's trees: `make test-sglang`.

SGLang's compiled kernels (sgl_kernel) need CUDA. Its Triton kernels for building and verifying
trees are the same algorithms and run in Triton's interpreter; sgl_kernel itself is replaced by
empty names so that SGLang's modules can be imported. No server is started here.
"""

import os
import sys
import types
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.engine
pytest.importorskip("sglang")

DOCUMENT = list(range(10, 60))
NODES = 8
# SGLang's compiled kernels, which need CUDA, and what its image models import
ABSENT = (
    "sgl_kernel",
    "sgl_kernel.speculative",
    "sgl_kernel.kvcacheio",
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
    "torchvision.io",
)


class Unavailable(types.ModuleType):
    """Any name can be imported; none works."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: pytest.fail(f"{self.__name__}.{name} was called")


@pytest.fixture(scope="module", autouse=True)
def no_compiled_kernels():
    import transformers  # noqa: F401  it looks for torchvision, and must not find this one

    for name in ABSENT:
        sys.modules.setdefault(name, Unavailable(name))


@pytest.fixture(scope="module")
def algorithm():
    """As SGLang finds it: through the entry point of the installed package."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()
    return SpeculativeAlgorithm.from_string("GRAFT")


def test_sglang_finds_the_algorithm_by_its_entry_point(algorithm):
    assert algorithm.is_ngram()
    assert not algorithm.has_draft_kv()


def request(name, output, **custom):
    return SimpleNamespace(
        rid=name,
        origin_input_ids_unpadded=[*DOCUMENT, 1],
        output_ids=output,
        sampling_params=SimpleNamespace(custom_params=custom),
    )


@pytest.fixture
def worker(algorithm):
    """SGLang's worker class without a model behind it."""
    worker = object.__new__(algorithm.factory(None))
    worker.draft_token_num, worker.enable_overlap = NODES, False
    return worker


def verified(worker, requests, continues):
    """What SGLang's tree builder and greedy verifier accept if the target goes on as told."""
    from sglang.kernels.ops.speculative.reconstruct_tree import (
        reconstruct_indices_from_tree_mask_triton,
    )
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    count = len(requests)
    tokens, mask = worker._prepare_draft_tokens(SimpleNamespace(reqs=requests))
    positions = torch.zeros(count * NODES, dtype=torch.int64)
    index, child, sibling = (torch.zeros(count, NODES, dtype=torch.int64) for _ in range(3))
    lengths = torch.tensor([50 + len(each.output_ids) for each in requests])
    reconstruct_indices_from_tree_mask_triton(
        torch.from_numpy(mask), lengths, positions, index, child, sibling, count, NODES
    )
    depths = mask.reshape(count, NODES, NODES).sum(-1) - 1
    assert (positions.view(count, NODES) == lengths[:, None] + torch.from_numpy(depths)).all()
    drafted = tokens.reshape(count, NODES)
    target = np.array([[continues[token] for token in row] for row in drafted.tolist()])
    predicted = torch.full((count * NODES,), -1, dtype=torch.int32)
    accepted = torch.full((count, NODES), -1, dtype=torch.int32)
    correct = torch.zeros(count, dtype=torch.int32)
    verify_tree_greedy_triton(
        predicted,
        accepted,
        correct,
        torch.from_numpy(drafted),
        index,
        child,
        sibling,
        torch.from_numpy(target),
    )
    return [predicted[row[row >= 0]].tolist() for row in accepted]


def test_sglangs_verifier_accepts_a_copy_and_its_next_token(worker):
    continues = {token: token + 1 for token in range(200)}
    [written] = verified(worker, [request("a", [10, 11, 12])], continues)
    assert written == list(range(13, 13 + NODES))


def test_sglangs_verifier_stops_where_the_target_differs(worker):
    continues = {token: token + 1 for token in range(200)} | {14: 99}
    requests = [request("a", [10, 11, 12]), request("b", [70])]
    copied, unknown = verified(worker, requests, continues)
    assert copied == [13, 14, 99]
    assert unknown == [71]


def test_a_requests_documents_are_drafted_from(worker):
    continues = {token: token + 1 for token in range(400)}
    documents = [list(range(300, 320))]
    with_one, without = verified(
        worker,
        [request("a", [300, 301], documents=documents), request("b", [300, 301])],
        continues,
    )
    assert len(with_one) == NODES
    assert without == [302]
