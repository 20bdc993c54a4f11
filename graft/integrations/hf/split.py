"""Models that transformers split over several processes (tensor parallel).

Every process runs the same loop on the same tokens, and each forward synchronises them, so
processes that decide differently would deadlock. Drafts depend on tokens only, sampling on tokens
and seeds. Seeds and step costs are the first process's, and the arguments of the call are compared
before anything runs.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as distributed
from transformers import MaxTimeCriteria, PreTrainedModel, StoppingCriteriaList

from graft.errors import InputError, UnsupportedModelError
from graft.models.forward_hook import is_split
from graft.models.language_model import LanguageModel
from graft.models.step_costs import StepCosts, given_costs, measure


def check_split(model: PreTrainedModel, criteria: StoppingCriteriaList) -> None:
    """Raise InputError for what a split model does not support."""
    mesh = _mesh(model)
    if mesh is not None and mesh.size() != (model.tp_size or 1):
        raise InputError(
            "the model is split over processes in other ways than tensor parallel (FSDP, pipeline);"
            " load it with tp_plan='auto' alone"
        )
    if not is_split(model):
        return
    if mesh is None:
        raise InputError(
            "the model was not split by transformers' from_pretrained; load it with tp_plan='auto'"
        )
    if any(isinstance(each, MaxTimeCriteria) for each in criteria):
        raise InputError(
            "max_time is not supported on a model that is split over processes: their clocks "
            "differ; use max_new_tokens"
        )


@contextmanager
def explain_uneven_heads(model: PreTrainedModel) -> Iterator[None]:
    """Extend an error inside the block if the heads cannot be divided among the processes."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    try:
        yield
    except UnsupportedModelError as error:
        if not is_split(model) or heads % model.tp_size == 0:
            raise
        raise UnsupportedModelError(
            f"{error}; {heads} key-value heads cannot be divided among {model.tp_size} "
            "processes; start a number that divides them"
        ) from error


def agreed_seeds(
    model: PreTrainedModel, seeds: Sequence[int | None], options: tuple[Any, ...]
) -> Sequence[int | None]:
    """The first process's seeds; InputError in all processes if their options differ. For a model
    that is not split, the same seeds."""
    if not is_split(model):
        return seeds
    digest = hashlib.sha256(repr(options).encode()).hexdigest()
    all_options = _gathered(model, (digest, list(seeds)))
    if (
        len({digest for digest, _ in all_options}) > 1
        or len({len(seeds) for _, seeds in all_options}) > 1
    ):
        raise InputError(
            "the processes of the model got different prompts or options; pass the same to all"
        )
    return all_options[0][1]


def shared_costs(model: PreTrainedModel, target: LanguageModel) -> StepCosts:
    """The step costs of the first process.

    All processes measure, since none can run alone. The costs are not cached on disk, because the
    caches of several machines may differ.
    """
    return _gathered(model, given_costs() or measure(target))[0]


def _gathered(model: PreTrainedModel, own: Any) -> list[Any]:  # noqa: ANN401
    """The values of all processes, in their order."""
    mesh = _mesh(model)
    group = mesh.get_group("tp" if mesh.ndim > 1 else None)
    values = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, own, group)
    return values


def _mesh(model: PreTrainedModel) -> Any:  # noqa: ANN401
    """torch's device mesh of a split model; None if the model is not split."""
    return getattr(model, "_device_mesh", None)
