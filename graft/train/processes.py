"""Training in one process or in several.

`accelerate launch -m graft train ...` or `torchrun` start several. Each has the target and the head
and takes its part of every batch; accelerate sums the gradients. A head is one layer, so it is not
sharded.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graft.errors import InputError

TIMEOUT = timedelta(hours=12)  # the first process regenerates answers and packs


class Processes(Protocol):
    """The processes of a run."""

    rank: int
    count: int

    def prepare(self, head: nn.Module) -> nn.Module:
        """The head whose forward is called from now on."""

    def accumulating(self, head: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are summed over processes only in the `last` part of a step."""

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients."""

    def broadcast(self, value: Any) -> Any:  # noqa: ANN401 (a number, a flag)
        """The first process's value, for all."""


class SingleProcess:
    """The only process."""

    rank, count = 0, 1

    def prepare(self, head: nn.Module) -> nn.Module:
        """See Processes."""
        return head

    def accumulating(self, head: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See Processes."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """See Processes."""
        loss.backward()

    def broadcast(self, value: Any) -> Any:  # noqa: ANN401
        """See Processes."""
        return value


class MultiProcess:
    """Several processes through accelerate."""

    def __init__(self) -> None:
        try:
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError:
            raise InputError(
                "several processes need accelerate: pip install 'graftlm[train]'"
            ) from None
        cpu = not torch.cuda.is_available()
        longer = InitProcessGroupKwargs(timeout=TIMEOUT)
        self._accelerator = Accelerator(cpu=cpu, kwargs_handlers=[longer])
        self.rank, self.count = self._accelerator.process_index, self._accelerator.num_processes
        if str(self._accelerator.distributed_type).endswith(("FSDP", "DEEPSPEED", "MEGATRON_LM")):
            raise InputError("a head is one layer and is not sharded; configure plain MULTI_GPU")

    def prepare(self, head: nn.Module) -> nn.Module:
        """See Processes."""
        return self._accelerator.prepare_model(head)

    def accumulating(self, head: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """See Processes."""
        return nullcontext() if last else self._accelerator.no_sync(head)

    def backward(self, loss: Tensor) -> None:
        """See Processes. accelerate averages gradients, so the loss is scaled by `count`."""
        self._accelerator.backward(loss * self.count)

    def broadcast(self, value: Any) -> Any:  # noqa: ANN401
        """See Processes."""
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]


def processes() -> Processes:
    """The processes, from the launcher's environment variables."""
    return MultiProcess() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else SingleProcess()


def own_device(device: str) -> str:
    """The GPU of this process."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or device == "cpu" or not torch.cuda.is_available():
        return device
    return f"cuda:{local}"
