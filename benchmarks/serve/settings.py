"""What load a server is put under, checked before the first request."""

from dataclasses import dataclass
from pathlib import Path

from graft.errors import InputError

SERVE = "serve"
KEY = ("concurrency",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """`requests` are sent at every concurrency, or for `seconds`; a share of clients leave early
    or send what must be refused. Prompts are a suite's, or made up."""

    url: str = "http://127.0.0.1:8000"
    api_key: str | None = None
    model: str | None = None  # the server's only or first one
    concurrency: tuple[int, ...] = (1, 4, 16)
    requests: int = 32
    seconds: float | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    suite: str | None = None
    data: Path | None = None
    prompts: int = 16  # different ones
    leaving: float = 0.0
    invalid: float = 0.0
    check: bool = False  # compare with what the server answers to one client alone
    pid: int | None = None  # of the server, for its memory

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise InputError("--concurrency takes whole numbers from 1 on, such as 1,4,16")
        for name in ("requests", "max_tokens", "prompts"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1")
        if self.seconds is not None and self.seconds <= 0:
            raise InputError("--seconds must be more than 0")
        if min(self.leaving, self.invalid) < 0 or self.leaving + self.invalid >= 1:
            raise InputError("--leaving and --invalid are shares whose sum is below 1")
        if self.check and self.temperature > 0:
            raise InputError("--check compares greedy answers; leave --temperature out")

    @property
    def fixed(self) -> dict[str, object]:
        """What must be the same for all lines of a file."""
        return {
            "url": self.url,
            "suite": self.suite or "made up",
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "leaving": self.leaving,
            "invalid": self.invalid,
        }


def concurrencies(text: str | None) -> tuple[int, ...] | None:
    """What --concurrency means."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--concurrency takes numbers such as 1,4,16, not {text!r}") from None
