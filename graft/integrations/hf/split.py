"""Models that transformers split over several processes (tensor parallel).

Every process runs the same loop on the same tokens, and in every forward each waits for the others.
Processes that decide differently would wait for ever. Drafts follow from tokens, and draws from
tokens and seeds; what else decides is taken from the first process, and where all must be told the
same it is compared before anything runs.
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


def refuse_on_split(model: PreTrainedModel, criteria: StoppingCriteriaList) -> None:
    """Raise for what several processes cannot do together."""
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
            "the model is split by other means than transformers' from_pretrained; load it so"
        )
    if any(isinstance(each, MaxTimeCriteria) for each in criteria):
        raise InputError(
            "max_time is not supported on a model that is split over processes: their clocks "
            "differ; use max_new_tokens"
        )


@contextmanager
def heads_blamed(model: PreTrainedModel) -> Iterator[None]:
    """A refusal inside the block says so where heads cannot be shared out evenly."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    try:
        yield
    except UnsupportedModelError as error:
        if not is_split(model) or heads % model.tp_size == 0:
            raise
        raise UnsupportedModelError(
            f"{error}; {heads} key-value heads cannot be shared out among {model.tp_size} "
            "processes: start as many as divide them"
        ) from error


def agreed_seeds(
    model: PreTrainedModel, seeds: Sequence[int | None], asked: tuple[Any, ...]
) -> Sequence[int | None]:
    """The first process's seeds; InputError in all of them if they were asked for different things.

    On a model that is whole the seeds are as they were.
    """
    if not is_split(model):
        return seeds
    digest = hashlib.sha256(repr(asked).encode()).hexdigest()
    told = _gathered(model, (digest, list(seeds)))
    if len({digest for digest, _ in told}) > 1 or len({len(seeds) for _, seeds in told}) > 1:
        raise InputError(
            "the processes that share the model were given different prompts or options; give all "
            "of them the same"
        )
    return told[0][1]


def shared_costs(model: PreTrainedModel, target: LanguageModel) -> StepCosts:
    """What steps cost in the first process.

    All measure, since none can run alone, and nothing is kept on disk: what one machine has kept
    another may not have.
    """
    return _gathered(model, given_costs() or measure(target))[0]


def _gathered(model: PreTrainedModel, own: Any) -> list[Any]:  # noqa: ANN401
    """What every process has, in their order."""
    mesh = _mesh(model)
    group = mesh.get_group("tp" if mesh.ndim > 1 else None)
    everybody = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everybody, own, group)
    return everybody


def _mesh(model: PreTrainedModel) -> Any:  # noqa: ANN401
    """The processes a model is split over, as torch's device mesh; None if it is whole."""
    return getattr(model, "_device_mesh", None)
