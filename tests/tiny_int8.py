"""Networks in memory, their linear layers quantised by torchao itself."""

from torch import nn
from transformers import PreTrainedModel


def quantised(network: PreTrainedModel) -> PreTrainedModel:
    """The network with int8 linear layers, all but the output layer, as transformers does it."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    head = network.get_output_embeddings()
    quantize_(
        network,
        Int8WeightOnlyConfig(version=2),
        filter_fn=lambda module, name: isinstance(module, nn.Linear) and module is not head,
    )
    return network
