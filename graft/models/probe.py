"""Verifies that a forward computes the same logits as transformers' network.

A short prompt is prefilled, a small tree scored, a path committed and one more token scored. Every
path's logits must equal those of the network's own eager forward over the plain sequence.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from graft.errors import UnsupportedModelError
from graft.models.language_model import Forward, LanguageModel
from graft.tree.draft_tree import chain, from_paths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OTHER_ATTENTION = "sdpa"
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2, torch.float16: 3e-2}


def reference_logits(model: "PreTrainedModel", sequences: list[list[int]]) -> list[Tensor]:
    """[n, V] float32 of plain sequences by the model's own forward."""
    results = []
    with torch.no_grad():
        for tokens in sequences:
            batch = torch.tensor([tokens], device=model.device)
            results.append(model(input_ids=batch, use_cache=False).logits[0].float().cpu())
    return results


@dataclass(frozen=True, slots=True)
class Reference:
    """The network's own logits for the probe's paths, and their rounding error.

    Some models have activations so large that in 16 bits rounding alone changes logits by a tenth:
    `spread` is the largest change of a logit by another attention implementation.
    """

    logits: list[Tensor]  # of prompt + each path: [n, V] float32
    spread: float = 0.0

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.logits[0].shape[1]


def reference_of(model: "PreTrainedModel") -> Reference:
    """The reference of a network; in 16 bits it runs with two attention implementations."""
    prompt, paths = probe_paths(model.get_output_embeddings().weight.shape[0])
    sequences = [prompt + path for path in paths]
    logits = reference_logits(model, sequences)
    before = model.config._attn_implementation
    if model.dtype == torch.float32 or before == OTHER_ATTENTION:
        return Reference(logits)
    try:
        model.set_attn_implementation(OTHER_ATTENTION)
        others = reference_logits(model, sequences)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError):
        return Reference(logits)  # it has one implementation only
    finally:
        model.set_attn_implementation(before)
    spread = max(float((a - b).abs().max()) for a, b in zip(logits, others, strict=True))
    return Reference(logits, spread)


def probe_paths(vocabulary: int) -> tuple[list[int], list[list[int]]]:
    """A prompt and the three paths of a tree that continue it (root first)."""
    numbers = np.random.default_rng(0).integers(3, min(vocabulary, 1000), 32).tolist()
    root, rest = numbers[20], numbers[21:]
    return numbers[:20], [
        [root, rest[0], rest[1], rest[2]],
        [root, rest[0], rest[3]],
        [root, rest[4]],
    ]


def check(forward: Forward, expected: Reference, *, name: str, dtype: torch.dtype) -> None:
    """Raise unless tree logits agree with the reference, within its rounding error."""
    vocabulary = expected.vocabulary
    prompt, paths = probe_paths(vocabulary)
    model = LanguageModel(forward, vocabulary=vocabulary, context_length=1 << 20)
    extent = model.open(len(prompt) + 16)
    scale = max(float(each.abs().max()) for each in expected.logits)
    tree = from_paths(paths[0][0], [path[1:] for path in paths])
    try:
        model.prefill(extent, prompt)
        logits = model.score([extent], [tree])[0].cpu()
        worst = 0.0
        for path, reference in zip(paths, expected.logits, strict=True):
            nodes = _nodes_of(tree.children, path[1:])
            difference = logits[nodes] - reference[len(prompt) :]
            worst = max(worst, float(difference.abs().max()))
        longest = _nodes_of(tree.children, paths[0][1:])
        model.commit(extent, longest[:-1])
        again = model.score([extent], [chain(paths[0][-1:])])[0].cpu()
        worst = max(worst, float((again[0] - expected.logits[0][-1]).abs().max()))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name} cannot be used: {error}") from error
    except Exception as error:  # a model's code and a kernel's compiler raise anything
        raise UnsupportedModelError(
            f"{name} cannot be used: its attention does not fit ours "
            f"({type(error).__name__}: {next(iter(str(error).splitlines()), '')[:120]})"
        ) from error
    finally:
        model.close(extent)
    if not worst <= max(TOLERANCE[dtype] * scale, 2 * expected.spread):
        raise UnsupportedModelError(
            f"{name} cannot be used: scored as a tree its logits differ by {worst:.3g} "
            f"(of {scale:.3g}) from its own forward; it may keep state outside attention"
        )


def _nodes_of(children: list[dict[int, int]], path: list[int]) -> list[int]:
    nodes = [0]
    for token in path:
        nodes.append(children[nodes[-1]][token])
    return nodes
