"""A step of recurrent layers by kernels of ours, which read from the device what changes."""

from torch import Tensor
from transformers.activations import ACT2FN

from graft.kernels import recurrent_triton
from graft.models.device_step import DeviceStep
from graft.models.recurrent import Convolution, Scan
from graft.models.state_storage import StateStorage

SILU = ("silu", "swish")


class CapturedStates:
    """See `recurrent.RecurrentStep`."""

    def __init__(self, storage: StateStorage, step: DeviceStep) -> None:
        self._storage = storage
        self._tables = (step.links, step.walks, step.sequences)

    def convolve(self, state: int, inputs: Tensor, convolution: Convolution) -> Tensor:
        """See RecurrentStep."""
        weight, bias, activation = convolution
        states, silu = self._storage.states[state], activation in SILU
        convolved = recurrent_triton.convolve(
            inputs, weight, bias, states, self._tables[0], silu=silu
        )
        return convolved if silu or activation is None else ACT2FN[activation](convolved)

    def scan(self, state: int, inputs: list[Tensor], scan: Scan) -> Tensor:
        """See RecurrentStep."""
        assert scan.kernel is not None, "layers without a kernel are not captured"
        kernel = getattr(recurrent_triton, scan.kernel)
        nodes = [each[0] for each in inputs]
        return kernel(*nodes, self._storage.states[state], self._tables, **scan.options)[None]
