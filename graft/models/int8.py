"""Weight-only int8: torchao's weights as codes and scales for our kernels.

The linear layers are quantised symmetrically, one scale for each output column: weight =
code * scale. Embedding, output layer, norms and biases keep their dtype, as transformers leaves
them. Weights are quantised from float32 on every device, so the codes are the same everywhere.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graft.errors import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_METHOD, _KIND = "torchao", "Int8WeightOnlyConfig"


def quantisation() -> "Any":  # noqa: ANN401
    """transformers' config for weights that torchao quantises at load."""
    try:
        from torchao.quantization import Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        return TorchAoConfig(Int8WeightOnlyConfig(version=2))
    except (ImportError, ValueError) as error:
        raise _no_torchao() from error


def quantise(module: nn.Module) -> None:
    """Quantise all linear layers inside as transformers does at load."""
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise _no_torchao() from error
    quantize_(module, Int8WeightOnlyConfig(version=2))


def quantised(weight: Tensor) -> Tensor:
    """A linear layer's weight as torchao's tensor."""
    linear = nn.Linear(1, 1, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.to(torch.float32), requires_grad=False)
    quantise(linear)
    return linear.weight


def _no_torchao() -> InputError:
    return InputError("int8 needs torchao; type: pip install torchao")


def stored_quantisation(config: "PretrainedConfig") -> str | None:
    """How a checkpoint's weights are quantised: "int8" if as above, another name, or None."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    settings = stored if isinstance(stored, dict) else stored.to_dict()
    method = str(settings.get("quant_method"))
    kind = settings.get("quant_type")
    kind = kind.get("default", {}).get("_type") if isinstance(kind, dict) else kind
    return "int8" if (method, kind) == (_METHOD, _KIND) else f"{method} {kind or ''}".strip()


def is_plain(weight: Tensor) -> bool:
    """Whether a weight is a plain tensor, not a quantiser's subclass."""
    return type(weight) in (Tensor, nn.Parameter)


def is_symmetric_int8(weight: Tensor) -> bool:
    """Whether a weight is torchao's int8 with one scale for each row, or one for all."""
    if type(weight).__name__ != "Int8Tensor" or weight.qdata.ndim != 2:
        return False
    shifted = weight.zero_point is not None and bool(weight.zero_point.any())
    changes_inputs = weight.act_quant_kwargs is not None or weight.act_pre_scale is not None
    one_each = weight.scale.numel() in (1, weight.shape[0])
    return one_each and not shifted and not changes_inputs


def codes_of(weight: Tensor) -> Tensor:
    """[out, in] int8."""
    return weight.qdata


def scales_of(weight: Tensor) -> Tensor:
    """[out] float32."""
    return weight.scale.float().flatten().expand(weight.shape[0])
