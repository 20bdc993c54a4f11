"""Settings of a training run: each field is an option of `graft train`."""

import re
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from graft.errors import InputError

KINDS = ("eagle3", "eagle2", "longspec")
LOSSES = ("soft", "token", "paper")
DTYPES = ("fp16", "bf16", "fp32", "int8")
UNROLL = {"eagle3": 7, "eagle2": 3}
ANSWERS = "answers"  # in place of a kind: generate training data only
# Options that may change when a run is resumed.
FREE = {
    "out", "steps", "minutes", "save_minutes", "device", "dtype", "micro_batch", "evaluations",
    "kv_cache",
}  # fmt: skip
PART = re.compile(r"(\d+)/(\d+)")


def option(default: Any, help_text: str) -> Any:  # noqa: ANN401 (dataclasses' own signature)
    """A field with the help text of its option."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Validated; InputError for invalid values."""

    kind: str
    data: tuple[str, ...]
    out: Path
    model: str = option("smollm2-135m", "The target: known name, hub id, folder or GGUF file.")
    field: str = option("", "Field of the text or conversation in records; a.b nests.")
    exclude: str = option("", "Exclude texts that share 13 words in a row with these files.")
    all_tokens: bool = option(False, "Train on all tokens, not only on answers.")  # noqa: FBT003
    regenerate: int = option(0, "Train on the target's answers to the first N questions.")
    answers: Path | None = option(None, "JSON Lines file of these answers; default: beside --out.")
    answer_tokens: int = option(256, "Maximum tokens of an answer of --regenerate.")
    temperature: float = option(0.0, "Temperature of --regenerate; 0 is greedy.")
    part: str = option("1/1", "The part of the questions to answer: 2/8 is every 8th from the 2nd.")
    kv_cache: float = option(0.0, "GB of the KV cache of --regenerate; 0: the free memory.")
    length: int = option(1024, "Tokens of a packed sequence.")
    batch: int = option(16, "Sequences per step.")
    keep_outputs: float = option(0.0, "GB of memory to keep the target's outputs between epochs.")
    micro_batch: int = option(0, "Sequences per forward pass; 0: all of --batch.")
    steps: int = option(0, "Length of the run in steps ...")
    minutes: float = option(0.0, "... or in minutes of training.")
    learning_rate: float = option(1e-3, "Peak learning rate, after the warm-up.")
    warmup: float = option(0.05, "Fraction of the run with a rising learning rate.")
    weight_decay: float = option(0.01, "Weight decay of matrices.")
    loss: str = option("soft", "soft (the target's distribution), token (the text), paper.")
    unroll: int = option(0, "Steps that eagle runs on its own outputs; 0: eagle3 7, eagle2 3.")
    unroll_decay: float = option(0.8, "Loss weight of each such step relative to the one before.")
    noise: float = option(0.2, "Range of eagle2's uniform noise on features, at 512 tokens.")
    shifts: int = option(4, "Mask the target's last 1 to N keys for longspec (flash-noisy).")
    sinks: int = option(4, "First positions that anchor-offset does not shift.")
    vanilla_positions: bool = option(False, "No anchor-offset positions for longspec.")  # noqa: FBT003
    offset_positions: bool = option(False, "Anchor-offset positions for eagle too.")  # noqa: FBT003
    no_final_norm: bool = option(False, "No norm before longspec's output, as in the paper.")  # noqa: FBT003
    random_start: bool = option(False, "Initialise with random weights, not the target's.")  # noqa: FBT003
    paper: bool = option(False, "longspec's paper: one layer, token loss, no final norm, all ids.")  # noqa: FBT003
    start: Path | None = option(None, "Initialise with the weights of this head.")
    window: int = option(512, "Window of longspec's own attention.")
    cross_layers: int = option(1, "Number of the target's last layers that longspec attends to.")
    inner: int = option(0, "Width of the head's MLP; 0: the target's.")
    tied_output: bool = option(False, "eagle3 has the target's output layer, not its own.")  # noqa: FBT003
    draft_vocabulary: int = option(16384, "Size of the draft vocabulary; 0: all ids.")
    held_out: float = option(0.02, "Fraction of the texts held out.")
    evaluations: int = option(10, "Number of evaluations on held-out texts.")
    save_minutes: float = option(1.0, "Minutes between checkpoints.")
    seed: int = option(0, "Seed of order, noise, offsets and initial weights.")
    device: str = option("auto", "cpu, cuda, ... or auto.")
    dtype: str = option("fp16", "dtype of the saved head: fp16, bf16, fp32 or int8.")

    def __post_init__(self) -> None:
        if self.kind == "mtp":
            raise InputError(f"MTP layers come with their model; train {', '.join(KINDS)}")
        _check_choice("kind", self.kind, (*KINDS, ANSWERS))
        _check_choice("--loss", self.loss, LOSSES)
        _check_choice("--dtype", self.dtype, DTYPES)
        if not self.data:
            raise InputError("no training data: name files with --data")
        if self.kind != ANSWERS and (self.steps > 0) == (self.minutes > 0):
            raise InputError("set the length of the run: either --steps N or --minutes M")
        for name, minimum in MINIMUMS.items():
            if getattr(self, name) < minimum:
                raise InputError(f"{option_name(name)} must be at least {minimum:g}")
        number, parts = self.share
        if not 1 <= number <= parts:
            raise InputError(f"--part is a number and how many parts, such as 2/8, not {self.part}")
        if not 0 < self.held_out <= 0.5:
            raise InputError("--held-out must be above 0 and at most 0.5")
        self._check_kind()
        self._set_defaults()

    def _check_kind(self) -> None:
        """Raise InputError for options of other kinds."""
        if self.kind == ANSWERS and not self.regenerate:
            raise InputError("how many questions should be answered? --regenerate N")
        if self.kind != "longspec" and self.cross_layers > 1:
            raise InputError("--cross-layers is for longspec only")
        if self.kind != "longspec" and self.paper:
            raise InputError("--paper is for longspec only; other heads have --loss paper")
        if self.kind != "eagle3" and self.tied_output:
            raise InputError("--tied-output is for eagle3 only: other heads have no output layer")

    def _set_defaults(self) -> None:
        """Set what other options imply."""
        implied: dict[str, Any] = {"unroll": self.unroll or UNROLL.get(self.kind, 1)}
        if self.paper:
            implied |= {"cross_layers": 1, "no_final_norm": True, "draft_vocabulary": 0}
        if self.paper or (self.kind == "longspec" and self.loss == "paper"):
            implied["loss"] = "token"  # LongSpec's loss
        for name, value in implied.items():
            object.__setattr__(self, name, value)

    @property
    def share(self) -> tuple[int, int]:
        """The part of the questions and the number of parts; zeros for a bad --part."""
        found = PART.fullmatch(self.part)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def work(self) -> Path:
        """The folder of checkpoints, logs and answers."""
        return self.out.with_name(f"{self.out.name}.train")

    @property
    def answers_file(self) -> Path:
        """Where the target's answers are."""
        own = self.out if self.kind == ANSWERS else self.work / "answers.jsonl"
        return self.answers or own

    def identity(self) -> dict[str, Any]:
        """The settings that a resumed run must share, as JSON values."""
        kept = {name: value for name, value in asdict(self).items() if name not in FREE}
        kept["data"] = list(kept["data"])
        return {n: str(v) if isinstance(v, Path) else v for n, v in kept.items()}


MINIMUMS = {
    "length": 16, "batch": 1, "micro_batch": 0, "steps": 0, "minutes": 0, "learning_rate": 0,
    "warmup": 0, "weight_decay": 0, "unroll": 0, "unroll_decay": 0, "noise": 0, "shifts": 1,
    "inner": 0, "sinks": 0, "window": 1, "cross_layers": 1, "draft_vocabulary": 0, "evaluations": 1,
    "save_minutes": 0, "regenerate": 0, "answer_tokens": 1, "temperature": 0, "keep_outputs": 0,
    "kv_cache": 0,
}  # fmt: skip


def option_name(name: str) -> str:
    """The command-line option of a field."""
    return f"--{name.replace('_', '-')}"


def options() -> list[Field]:
    """The fields with a default; commands define the others."""
    return [each for each in fields(Settings) if "help" in each.metadata]


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
