"""What a training run is asked to do: one field is one option of `graft train`."""

from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from graft.errors import InputError

KINDS = ("eagle2", "longspec")
LOSSES = ("soft", "token", "paper")
DTYPES = ("fp16", "bf16", "fp32")
# What may change when a run goes on: none of it changes which steps were made so far.
FREE = {"out", "steps", "minutes", "save_minutes", "device", "dtype", "micro_batch", "evaluations"}


def option(default: Any, help_text: str) -> Any:  # noqa: ANN401 (dataclasses' own signature)
    """A field with the help of its option."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked when made; InputError in one line for what cannot be."""

    kind: str
    data: tuple[str, ...]
    out: Path
    model: str = option("smollm2-135m", "The target: known name, hub id, folder or GGUF file.")
    field: str = option("", "Where records have their text or conversation; a.b nests.")
    exclude: str = option("", "Learn from no text with 13 words in a row of these files.")
    all_tokens: bool = option(False, "Learn from questions too, not from answers alone.")  # noqa: FBT003
    regenerate: int = option(0, "Let the target itself answer so many of the data's questions.")
    answers: Path | None = option(None, "JSON lines to keep its answers in; beside --out.")
    answer_tokens: int = option(256, "Longest answer of --regenerate.")
    temperature: float = option(0.0, "Of --regenerate; 0 is greedy.")
    length: int = option(1024, "Tokens of a packed sequence.")
    batch: int = option(16, "Sequences of a step.")
    micro_batch: int = option(0, "Sequences at a time, of --batch; 0 is all.")
    steps: int = option(0, "How long: so many steps ...")
    minutes: float = option(0.0, "... or so many minutes of training, all stretches together.")
    learning_rate: float = option(1e-3, "Highest, after the warm-up.")
    warmup: float = option(0.05, "Part of the run in which the rate rises.")
    weight_decay: float = option(0.01, "Of matrices.")
    loss: str = option("soft", "soft (the target's distribution), token (the text), paper.")
    unroll: int = option(3, "Steps eagle2 feeds itself its own features.")
    unroll_decay: float = option(0.8, "Weight of each such step against the one before.")
    noise: float = option(0.2, "Spread of eagle2's noise on features, at 512 tokens.")
    shifts: int = option(4, "longspec hides the target's last 1 to so many keys (flash-noisy).")
    sinks: int = option(4, "First positions that anchor-offset leaves in place.")
    vanilla_positions: bool = option(False, "No anchor-offset positions for longspec.")  # noqa: FBT003
    offset_positions: bool = option(False, "Anchor-offset positions for eagle2 too.")  # noqa: FBT003
    no_final_norm: bool = option(False, "No norm before longspec's output, as in the paper.")  # noqa: FBT003
    random_start: bool = option(False, "Begin with random weights, not with the target's.")  # noqa: FBT003
    start: Path | None = option(None, "Begin with this head's weights.")
    window: int = option(512, "longspec's own attention.")
    cross_layers: int = option(1, "The target's last layers that longspec looks at.")
    draft_vocabulary: int = option(16384, "Frequent ids to draft; 0 is all.")
    held_out: float = option(0.02, "Part of the texts to measure with.")
    evaluations: int = option(10, "Times acceptance is measured on them.")
    save_minutes: float = option(1.0, "Between checkpoints.")
    seed: int = option(0, "Of order, noise, offsets and first weights.")
    device: str = option("auto", "cpu, cuda, ... or auto.")
    dtype: str = option("fp16", "Of the head's file: fp16, bf16 or fp32.")

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, KINDS)
        _check_choice("--loss", self.loss, LOSSES)
        _check_choice("--dtype", self.dtype, DTYPES)
        if not self.data:
            raise InputError("nothing to learn from: name files with --data")
        if (self.steps > 0) == (self.minutes > 0):
            raise InputError("say how long: either --steps N or --minutes M")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{spelled(name)} must be at least {least:g}")
        if not 0 < self.held_out <= 0.5:
            raise InputError("--held-out must be above 0 and at most 0.5")
        if self.kind != "longspec" and self.cross_layers > 1:
            raise InputError("--cross-layers is for longspec; other heads do not look at layers")
        if self.kind == "longspec" and self.loss == "paper":
            object.__setattr__(self, "loss", "token")  # that is LongSpec's

    @property
    def work(self) -> Path:
        """Where checkpoints, logs and answers of this run lie."""
        return self.out.with_name(f"{self.out.name}.train")

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same, as JSON has it."""
        kept = {name: value for name, value in asdict(self).items() if name not in FREE}
        kept["data"] = list(kept["data"])
        return {n: str(v) if isinstance(v, Path) else v for n, v in kept.items()}


LEAST = {
    "length": 16, "batch": 1, "micro_batch": 0, "steps": 0, "minutes": 0, "learning_rate": 0,
    "warmup": 0, "weight_decay": 0, "unroll": 1, "unroll_decay": 0, "noise": 0, "shifts": 1,
    "sinks": 0, "window": 1, "cross_layers": 1, "draft_vocabulary": 0, "evaluations": 1,
    "save_minutes": 0, "regenerate": 0, "answer_tokens": 1, "temperature": 0,
}  # fmt: skip


def spelled(name: str) -> str:
    """A field as its option is typed."""
    return f"--{name.replace('_', '-')}"


def options() -> list[Field]:
    """The fields that have a default; the others are asked for by each command."""
    return [each for each in fields(Settings) if "help" in each.metadata]


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
