"""The config of a draft head: its kind, its sizes and its target."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graft.errors import CheckpointError, UnsupportedModelError
from graft.models.checkpoints.pretrained import Checkpoint

if TYPE_CHECKING:
    from transformers import LlamaConfig, PretrainedConfig

MTP = "mtp"  # comes with its target's checkpoint, the others from `graft train`
KINDS = ("eagle3", "eagle2", "longspec", MTP)  # a target's default is its first
WINDOW = 512  # LongSpec's
BIASED = {"qwen2"}  # model types whose queries, keys and values have biases without saying so


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes are the target's own; `fingerprint` is "" where a file does not say it.

    `draft_vocabulary` ids of the target's `vocabulary` are drafted. `feature_layers` are the
    target's hidden states it reads, as in `Forward.features`; () for the default of its kind.
    `window`, `final_norm` and `cross_layers`, the number of the target's last layers it attends
    to, are LongSpec's; `fusion_bias` is EAGLE-2's. Of EAGLE-3's, `own_output` says whether it has
    an output layer, `norm_before_residual` whether the residual is the normed feature. Of an MTP
    layer's, `head_norms` says whether queries and keys have norms, `gated` whether the output of
    attention has a gate, and `rotary_share` how much of each head is rotated.
    """

    kind: str
    target: str
    fingerprint: str
    architecture: str  # of the target, by transformers' name
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    epsilon: float
    vocabulary: int
    draft_vocabulary: int
    positions: int  # that the target was made for
    rope: dict[str, Any] = field(default_factory=dict)
    attention_bias: bool = False
    fusion_bias: bool = False
    window: int = WINDOW
    final_norm: bool = True
    cross_layers: int = 1
    feature_layers: tuple[int, ...] = ()
    own_output: bool = False
    norm_before_residual: bool = False
    head_norms: bool = False
    gated: bool = False
    rotary_share: float = 1.0

    def __post_init__(self) -> None:
        if type(self.cross_layers) is not int or self.cross_layers < 1:
            raise ValueError(f"cross_layers must be 1 or more layers, not {self.cross_layers!r}")

    @property
    def num_features(self) -> int:
        """How many hidden states of the target it reads."""
        return len(self.feature_layers or default_features(self.kind, 0))

    @property
    def plain_attention(self) -> bool:
        """Whether attention is Llama's or Qwen3's, which the kernels compute."""
        return not self.gated and self.rotary_share == 1.0

    def layer_config(self) -> "LlamaConfig":
        """The head's layer as transformers would describe it."""
        from transformers import LlamaConfig

        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=1,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            max_position_embeddings=self.positions,
            rms_norm_eps=self.epsilon,
            rope_parameters=dict(self.rope),
            attention_bias=self.attention_bias,
        )


def head_config(
    kind: str,
    checkpoint: Checkpoint,
    target: "PretrainedConfig",
    *,
    draft_vocabulary: int | None = None,
    **more: Any,  # noqa: ANN401 (any other field)
) -> HeadConfig:
    """A new head's config for a target; the whole vocabulary unless said otherwise."""
    text = target.get_text_config()
    vocabulary = text.vocab_size
    given: dict[str, Any] = {
        "own_output": kind == "eagle3",
        "feature_layers": default_features(kind, text.num_hidden_layers),
    }
    return HeadConfig(
        kind=kind,
        target=checkpoint.name,
        fingerprint=checkpoint.fingerprint,
        architecture=next(iter(target.architectures or ()), ""),
        vocabulary=vocabulary,
        draft_vocabulary=min(draft_vocabulary or vocabulary, vocabulary),
        **given | sizes_of(target, checkpoint.name) | more,
    )


def default_features(kind: str, layers: int) -> tuple[int, ...]:
    """The features of a kind for a target of so many layers. EAGLE-3's low, middle and high ones
    are those of its authors' code, nearer together where there are fewer than six layers."""
    middle = layers // 2
    eagle3 = (min(2, middle), middle, max(layers - 3, middle))
    return {"eagle2": (-1,), "eagle3": eagle3, MTP: (-1,)}.get(kind, ())


def sizes_of(target: "PretrainedConfig", name: str) -> dict[str, Any]:
    """The fields of HeadConfig that describe a layer, read off a transformers config."""
    text = target.get_text_config()
    try:
        return {
            "hidden": text.hidden_size,
            "heads": text.num_attention_heads,
            "kv_heads": text.num_key_value_heads,
            "head_size": getattr(text, "head_dim", None)
            or text.hidden_size // text.num_attention_heads,
            "inner": text.intermediate_size,
            "epsilon": text.rms_norm_eps,
            "positions": text.max_position_embeddings,
            "rope": dict(text.rope_parameters),
            "attention_bias": bool(getattr(text, "attention_bias", text.model_type in BIASED)),
        }
    except (AttributeError, TypeError) as error:
        raise UnsupportedModelError(
            f"{name} ({text.model_type}) cannot have a draft head: {error}; "
            "heads need a Llama-shaped target"
        ) from error


def check_target(
    config: HeadConfig, checkpoint: Checkpoint, target: "PretrainedConfig", where: object
) -> None:
    """Refuse a head that does not fit this target."""
    text = target.get_text_config()
    if config.vocabulary != text.vocab_size:
        raise CheckpointError(
            f"{where} is for a vocabulary of {config.vocabulary}, {checkpoint.name} has "
            f"{text.vocab_size}; use a head trained for {checkpoint.name}"
        )
    sizes = sizes_of(target, checkpoint.name)
    names = ("hidden", "kv_heads", "head_size") if config.kind == "longspec" else ("hidden",)
    for name in names:
        if getattr(config, name) != sizes[name]:
            raise CheckpointError(
                f"{where} belongs to {config.target or 'another model'}: its {name} is "
                f"{getattr(config, name)}, that of {checkpoint.name} is {sizes[name]}"
            )
    if max(config.feature_layers, default=-1) >= text.num_hidden_layers:
        raise CheckpointError(
            f"{where} reads the input of layer {max(config.feature_layers)}, {checkpoint.name} has "
            f"{text.num_hidden_layers} layers; use a head trained for {checkpoint.name}"
        )
    if config.cross_layers > text.num_hidden_layers:
        raise CheckpointError(
            f"{where} attends to {config.cross_layers} layers, {checkpoint.name} has "
            f"{text.num_hidden_layers}; use a head trained for {checkpoint.name}"
        )
