"""What a benchmark run is asked to do, checked before anything slow begins."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from graft.assemble import VERIFIERS, check_draft, load
from graft.bench.systems import PEERS, System, graft_system, lacks, preset_of
from graft.errors import InputError
from graft.machine import usable_cores
from graft.models.checkpoints.pretrained import DEFAULT_MODEL
from graft.models.heads.load import AUTO_HEAD, may_have_head, named_head
from graft.models.load import DTYPES
from graft.models.stretch import check_context_length

Split = Literal["tune", "report", "all"]
Quality = Literal["answers", "likelihood"]
# what the worker gives graft.load itself
SET_OTHERWISE = {
    "model", "draft_model", "head", "dtype", "device", "context_length", "draft", "verifier",
    "warm",
}  # fmt: skip
WHOLE = 0  # the context of prompts that are not cut to one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run. Every temperature, batch size and context is measured with all others.

    A context is how many tokens the prompts have; `WHOLE` leaves them as they are.
    """

    suite: str = "spec_bench"
    data: Path | None = None
    drafts: Sequence[str] = ("plain", "auto")
    peers: Sequence[str] = ()
    model: str = DEFAULT_MODEL
    draft_model: str | None = None
    head: str = AUTO_HEAD
    dtype: str = "auto"
    device: str = "auto"
    context_length: int | None = None  # of the models; None is their own
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    contexts: Sequence[int] = (WHOLE,)
    limit: int | None = None  # prompts of a category
    groups: int | None = None  # of prompts that are asked at once, in a cell
    split: Split = "report"
    categories: Sequence[str] = ()
    max_tokens: int = 128
    repeats: int = 1
    rehearsals: int = 0  # of an answer, before it is measured
    ignore_eos: bool = False  # every answer is as long as it may be
    quality: Quality = "answers"  # where there is gold; or its likelihood too
    load_options: Mapping[str, Any] = field(default_factory=dict)  # more of graft.load's
    threads: int = field(default_factory=usable_cores)
    gguf: Path | None = None
    draft_gguf: Path | None = None
    interpreters: Mapping[str, str] = field(default_factory=dict)  # by engine: hf, vllm, llama
    peer_options: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by peer

    def __post_init__(self) -> None:
        for name in ("max_tokens", "repeats", "threads", "limit", "groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        if self.rehearsals < 0:
            raise InputError(f"--rehearsals must be at least 0, not {self.rehearsals}")
        if any(batch < 1 for batch in self.batches):
            raise InputError("--batch takes whole numbers from 1 on, such as 1,4,16")
        if self.contexts != (WHOLE,) and min(self.contexts, default=0) < 1:
            raise InputError("--context takes numbers of tokens from 1 on, such as 1k,2k,4k")
        if not all(math.isfinite(value) and 0 <= value <= 100 for value in self.temperatures):
            raise InputError("--temperature takes numbers from 0 to 100, such as 0,1")
        check_context_length(self.context_length)
        if self.dtype not in DTYPES:
            raise InputError(f"unknown dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if self.quality not in get_args(Quality):
            raise InputError(f"--quality is one of {', '.join(get_args(Quality))}")
        check_load_options(self.load_options)
        self._check_systems()
        self._check_peers()

    def _check_systems(self) -> None:
        if not self.drafts and not self.peers:
            raise InputError("nothing to measure; name presets with --draft or peers with --peers")
        head = may_have_head(named_head(self.head))
        for system in map(graft_system, self.drafts):
            preset = preset_of(system.method)
            check_draft(preset, draft_model=self.draft_model is not None, head=head)
            _check_verifier(system)
        if self.dtype == "auto" and not self.drafts:
            raise InputError(
                "--dtype auto takes what is fastest for Graft; without --draft name one"
            )

    def _check_peers(self) -> None:
        if self.peers and self.context_length is not None:
            raise InputError("--context-length is for Graft alone; leave it out with --peers")
        for name in self.peers:
            if name not in PEERS:
                raise InputError(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")
            engine = PEERS[name].engine
            if engine != "hf" and not self.interpreters.get(engine):
                raise InputError(f"{name} needs --python-{engine}: the python of its environment")
            if lacking := lacks(name, self.given):
                raise InputError(f"{name} needs {lacking}")
        for file in (self.gguf, self.draft_gguf):
            if file is not None and not file.is_file():
                raise InputError(f"{file} does not exist; it must be a GGUF file")
        for name in self.peer_options:
            if name not in self.peers:
                raise InputError(f"--peer-options names {name!r}, which is not among --peers")

    @property
    def given(self) -> frozenset[str]:
        """Which of the options that peers may need are there."""
        named = {
            "gguf": self.gguf, "draft_gguf": self.draft_gguf, "draft_model": self.draft_model,
        }  # fmt: skip
        return frozenset(name for name, value in named.items() if value is not None)

    @property
    def systems(self) -> list[System]:
        """Everything that takes its turn: Graft's presets, then the peers."""
        return [graft_system(name) for name in self.drafts] + [PEERS[name] for name in self.peers]


def check_load_options(options: Mapping[str, Any]) -> None:
    """Refuse what graft.load does not take, or what other options say."""
    for name in options:
        if name not in inspect.signature(load).parameters:
            raise InputError(f"--load-options names {name!r}, which graft.load does not take")
        if name in SET_OTHERWISE:
            raise InputError(f"--load-options names {name!r}, which is set by other options")


def _check_verifier(system: System) -> None:
    verifier, _, strength = system.verifier.partition(":")
    if verifier not in VERIFIERS:
        raise InputError(
            f"unknown verifier {verifier!r} in {system.name!r}; choose one of "
            f"{', '.join(VERIFIERS)}"
        )
    try:
        sound = not strength or float(strength) >= 0
    except ValueError:
        sound = False
    if not sound:
        raise InputError(f"{system.name!r}: behind the colon comes eta, such as 20")
