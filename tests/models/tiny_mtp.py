"""Tiny checkpoints with a layer for multi-token prediction, in the layouts that are read, and a
plain version of the layer over the stored tensors."""

import json

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny import SHARPNESS, tiny_network, tiny_tokenizer
from tiny_architectures import repeating
from transformers import Qwen2Config, Qwen2ForCausalLM

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SMALL = 0.02
EXTRA = "model.layers.2."  # behind the target's two layers
PREFIX = {"mimo": "model.mtp_layers.0.", "qwen3.5": "mtp.", "extra layer": EXTRA}
OURS = {
    "mimo": {
        "fc": "input_proj", "token": "token_layernorm", "hidden": "hidden_layernorm",
        "final": "final_layernorm", "layer": "",
    },
    "qwen3.5": {
        "fc": "fc", "token": "pre_fc_norm_embedding", "hidden": "pre_fc_norm_hidden",
        "final": "norm", "layer": "layers.0.",
    },
    "extra layer": {
        "fc": "eh_proj", "token": "enorm", "hidden": "hnorm", "final": "shared_head.norm",
        "layer": "",
    },
}  # fmt: skip
LAYOUTS = tuple(PREFIX)


def target_of(layout):
    """The network that a layout belongs to."""
    if layout == "qwen3.5":
        return repeating("qwen3.5")
    if layout == "extra layer":
        return tiny_network()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        initializer_range=0.1, bos_token_id=None, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    network = Qwen2ForCausalLM(config).float().eval()
    network.lm_head.weight.data.normal_(0, SHARPNESS)
    network.model.embed_tokens.weight.data.normal_(0, 1)
    return network


def save_mtp(folder, layout, *, knows=True):
    """The folder with a target and an MTP layer; if it `knows`, it passes its token on, which
    mostly determines the target's next one."""
    network = target_of(layout)
    network.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    text = network.config.get_text_config()
    prefix = PREFIX[layout]
    made = tensors_of(layout, text, knows=knows)
    weights = load_file(folder / WEIGHTS) | {prefix + name: each for name, each in made.items()}
    if layout == "extra layer":
        for name in ("embed_tokens.weight", "shared_head.head.weight"):
            weights[prefix + name] = torch.zeros(2, 2)  # the target's are used
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    if layout == "mimo":
        content = json.loads((folder / CONFIG).read_text())
        content |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}
        content |= {"auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}
        (folder / CONFIG).write_text(json.dumps(content))
    return folder


def tensors_of(layout, config, *, knows):
    """The layer's tensors by the layout's names, behind its prefix."""
    generator = torch.Generator().manual_seed(4)
    width, inner = config.hidden_size, config.intermediate_size
    size = getattr(config, "head_dim", None) or width // config.num_attention_heads
    heads, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    gated = layout == "qwen3.5"
    shapes = {
        "self_attn.q_proj.weight": ((1 + gated) * heads, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, heads),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if layout == "mimo":
        shapes |= {"self_attn.q_proj.bias": (heads,), "self_attn.k_proj.bias": (keys,)}
        shapes |= {"self_attn.v_proj.bias": (keys,)}
    if gated:
        norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    spread = SMALL if knows else 0.2
    names = OURS[layout]
    made = {names["layer"] + name: shape for name, shape in shapes.items()}
    made |= {f"{names['layer']}{name}.weight": (length,) for name, length in norms.items()}
    made |= {f"{names[each]}.weight": (width,) for each in ("token", "hidden", "final")}
    made[f"{names['fc']}.weight"] = (width, 2 * width)
    tensors = {n: spread * torch.randn(s, generator=generator) for n, s in made.items()}
    if not gated:
        for name, tensor in tensors.items():
            tensor += name.endswith("weight") and tensor.dim() == 1
    if knows:
        token = slice(width, None) if layout == "mimo" else slice(width)
        tensors[f"{names['fc']}.weight"][:, token] += torch.eye(width)
    return tensors


class PlainLayer:
    """The layer of a layout over a chain of tokens, as its authors describe it."""

    def __init__(self, layout, folder, config):
        prefix, names = PREFIX[layout], OURS[layout]
        stored = load_file(folder / WEIGHTS)
        self.tensors = {
            name.removeprefix(prefix): each
            for name, each in stored.items()
            if name.startswith(prefix)
        }
        self.layout, self.names, self.config = layout, names, config
        self.size = getattr(config, "head_dim", None)
        self.size = self.size or config.hidden_size // config.num_attention_heads

    def norm(self, name, x):
        weight = self.tensors[f"{name}.weight"]
        weight = 1 + weight if self.layout == "qwen3.5" else weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps) * weight

    def linear(self, name, x):
        name = f"{self.names['layer']}{name}"
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def rotate(self, x):
        """x [T, heads, D], rows at positions 0, 1, ..."""
        rope = self.config.rope_parameters
        turned = int(self.size * rope.get("partial_rotary_factor", 1.0))
        angles = rope["rope_theta"] ** (-torch.arange(0, turned, 2) / turned)
        angles = torch.arange(len(x))[:, None, None] * torch.cat([angles, angles])
        first, second = x[..., : turned // 2], x[..., turned // 2 : turned]
        other = torch.cat([-second, first], -1)
        return torch.cat(
            [x[..., :turned] * angles.cos() + other * angles.sin(), x[..., turned:]], -1
        )

    def outputs(self, embeddings, hidden):
        """[T, E]: the output layer's inputs, given tokens 1 .. T and hidden states 0 .. T - 1."""
        own = self.names["layer"]
        parts = [
            self.norm(self.names["token"], embeddings),
            self.norm(self.names["hidden"], hidden),
        ]
        if self.layout == "mimo":
            parts.reverse()
        x = F.linear(torch.cat(parts, -1), self.tensors[f"{self.names['fc']}.weight"])
        x = x + self.attention(self.norm(f"{own}input_layernorm", x))
        y = self.norm(f"{own}post_attention_layernorm", x)
        y = F.silu(self.linear("mlp.gate_proj", y)) * self.linear("mlp.up_proj", y)
        return self.norm(self.names["final"], x + self.linear("mlp.down_proj", y))

    def attention(self, x):
        queries, keys, values = (self.linear(f"self_attn.{each}_proj", x) for each in "qkv")
        heads, gate = self.config.num_attention_heads, None
        queries = queries.view(len(x), heads, -1)
        keys, values = (each.view(len(x), -1, self.size) for each in (keys, values))
        if self.layout == "qwen3.5":
            queries, gate = queries.chunk(2, -1)
            own = self.names["layer"] + "self_attn."
            queries, keys = self.norm(f"{own}q_norm", queries), self.norm(f"{own}k_norm", keys)
        queries, keys = self.rotate(queries), self.rotate(keys)
        group = heads // keys.shape[1]
        keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
        scores = torch.einsum("thd,shd->hts", queries, keys) * self.size**-0.5
        unseen = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(unseen, -torch.inf).softmax(-1)
        attended = torch.einsum("hts,shd->thd", mixed, values)
        if gate is not None:
            attended = attended * gate.sigmoid()
        return self.linear("self_attn.o_proj", attended.flatten(1))
