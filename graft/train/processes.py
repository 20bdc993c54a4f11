"""One process or many: the loop asks the same of both.

Many are started by `accelerate launch` or `torchrun`; each holds the target and the head, reads
its share of every batch, and accelerate adds up the gradients. A head is one layer, so there is
nothing to shard.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graft.errors import InputError

LONGEST_WAIT = timedelta(hours=12)  # while the first process asks the target and packs


class Processes(Protocol):
    """Who takes part."""

    rank: int
    count: int

    def prepare(self, head: nn.Module) -> nn.Module:
        """The head whose forward is called from now on."""

    @contextmanager
    def accumulating(self, head: nn.Module, *, last: bool) -> Iterator[None]:
        """Gradients inside are added up between processes in the `last` part of a step only."""

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients."""

    def agree(self, value: Any) -> Any:  # noqa: ANN401 (a number, a flag)
        """The first process's value, for all."""


class Alone:
    """The only process."""

    rank, count = 0, 1

    def prepare(self, head: nn.Module) -> nn.Module:
        """See Processes."""
        return head

    @contextmanager
    def accumulating(self, head: nn.Module, *, last: bool) -> Iterator[None]:
        """See Processes."""
        yield

    def backward(self, loss: Tensor) -> None:
        """See Processes."""
        loss.backward()

    def agree(self, value: Any) -> Any:  # noqa: ANN401
        """See Processes."""
        return value


class Together:
    """Several processes through accelerate."""

    def __init__(self) -> None:
        try:
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError:
            raise InputError(
                "several processes need accelerate: pip install 'graftlm[train]'"
            ) from None
        cpu = not torch.cuda.is_available()
        patient = InitProcessGroupKwargs(timeout=LONGEST_WAIT)
        self._accelerator = Accelerator(cpu=cpu, kwargs_handlers=[patient])
        self.rank, self.count = self._accelerator.process_index, self._accelerator.num_processes
        if str(self._accelerator.distributed_type).endswith(("FSDP", "DEEPSPEED", "MEGATRON_LM")):
            raise InputError("a head is one layer and is not sharded; configure plain MULTI_GPU")

    def prepare(self, head: nn.Module) -> nn.Module:
        """See Processes."""
        return self._accelerator.prepare_model(head)

    @contextmanager
    def accumulating(self, head: nn.Module, *, last: bool) -> Iterator[None]:
        """See Processes."""
        if last:
            yield
            return
        with self._accelerator.no_sync(head):
            yield

    def backward(self, loss: Tensor) -> None:
        """Gradients are averaged, so that the sum over processes is `count` times too small."""
        self._accelerator.backward(loss * self.count)

    def agree(self, value: Any) -> Any:  # noqa: ANN401
        """See Processes."""
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]


def processes() -> Processes:
    """By what the launcher says in the environment."""
    return Together() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()


def own_device(device: str) -> str:
    """Every process on a machine has a GPU of its own."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or device == "cpu" or not torch.cuda.is_available():
        return device
    return f"cuda:{local}"
