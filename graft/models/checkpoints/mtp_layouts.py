"""The layers for multi-token prediction (MTP) that checkpoints carry beside their model: the names
of their tensors. transformers drops them when it loads the model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """Where the first MTP layer is: its tensors start with `prefix`, and `parts` are the modules
    beside a decoder layer's, by the names of ours. `shared` are copies of the target's tensors.

    With `hidden_first` the projection takes the hidden state before the token, and norms that are
    `centred` are stored as their difference from 1.
    """

    prefix: str  # {layers}: the number of the target's layers
    parts: Mapping[str, str]
    layer: str = ""  # what the names of the decoder layer start with
    shared: tuple[str, ...] = ()
    hidden_first: bool = False
    centred: bool = False

    def found(self, names: Collection[str], layers: int) -> bool:
        """Whether a checkpoint with these tensors has this layout."""
        return f"{self.prefix.format(layers=layers)}{self.parts['fc']}.weight" in names

    def our_name(self, name: str) -> str | None:
        """Of a tensor, whose name comes without the prefix; None for one that is not read."""
        module, _, kind = name.rpartition(".")
        for ours, theirs in self.parts.items():
            if module == theirs:
                return f"{ours}.{kind}"
        if not name.startswith(self.layer) or name in self.shared:
            return None
        return f"layer.{name.removeprefix(self.layer)}"


LAYOUTS = (
    MtpLayout(  # MiMo
        "model.mtp_layers.0.",
        {
            "fc": "input_proj",
            "token_norm": "token_layernorm",
            "feature_norm": "hidden_layernorm",
            "layer.final_layernorm": "final_layernorm",
        },
        hidden_first=True,
    ),
    MtpLayout(  # Qwen3-Next, Qwen3.5
        "mtp.",
        {
            "fc": "fc",
            "token_norm": "pre_fc_norm_embedding",
            "feature_norm": "pre_fc_norm_hidden",
            "layer.final_layernorm": "norm",
        },
        layer="layers.0.",
        centred=True,
    ),
    MtpLayout(  # DeepSeek-V3, GLM-4.5 and others: a layer after the last one
        "model.layers.{layers}.",
        {
            "fc": "eh_proj",
            "token_norm": "enorm",
            "feature_norm": "hnorm",
            "layer.final_layernorm": "shared_head.norm",
        },
        shared=("embed_tokens.weight", "shared_head.head.weight"),
    ),
)


def mtp_tensors(names: Collection[str], layers: int) -> tuple[MtpLayout, dict[str, str]] | None:
    """The layout of the MTP layer in a checkpoint with these tensors, whose target has so many
    layers, and all tensors of the layer without the prefix, by their names; None without one."""
    for layout in LAYOUTS:
        if layout.found(names, layers):
            prefix = layout.prefix.format(layers=layers)
            own = [name for name in names if name.startswith(prefix)]
            return layout, {name: name.removeprefix(prefix) for name in own}
    return None
