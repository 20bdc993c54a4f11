"""Settings of `python -m benchmarks serve`, checked before the first request."""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.settings import Settings, option
from graft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ServeSettings(Settings):
    """Load on an OpenAI-compatible server, with prompts of a suite or made-up ones."""

    kind: ClassVar[str] = "serve"
    at_least_one: ClassVar[tuple[str, ...]] = ("requests", "max_tokens", "prompts")

    url: str = option("http://127.0.0.1:8000", "of the server")
    api_key: str | None = option(None, "of the server")
    model: str | None = option(None, "the server's first one by default")
    concurrency: tuple[int, ...] = option((1, 4, 16), "clients at once")
    requests: int = option(32, "at every concurrency")
    seconds: float | None = option(None, "of load at every concurrency, instead of --requests")
    max_tokens: int = option(64, "max. tokens of an output")
    temperature: float = option(0.0, "of the requests")
    suite: str | None = option(None, "its prompts; made-up ones by default")
    prompts: int = option(16, "different prompts")
    disconnect: float = option(0.0, "share of clients that disconnect early")
    invalid: float = option(0.0, "share of requests that the server must refuse")
    check: bool = option(default=False, text="compare with the outputs for one client alone")
    reference: str | None = option(None, "URL of the server whose outputs --check expects")
    pid: int | None = option(None, "of the server, for its memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.concurrency or min(self.concurrency) < 1:
            raise InputError("--concurrency takes whole numbers from 1 on, such as 1,4,16")
        if self.seconds is not None and self.seconds <= 0:
            raise InputError("--seconds must be more than 0")
        if min(self.disconnect, self.invalid) < 0 or self.disconnect + self.invalid >= 1:
            raise InputError("--disconnect and --invalid are shares whose sum is below 1")
        if self.reference and not self.check:
            raise InputError("--reference needs --check")
        if self.check and self.temperature > 0:
            raise InputError("--check compares greedy outputs; omit --temperature")

    def header(self, model: str) -> dict[str, object]:
        """What must be equal in all runs that write to a file."""
        names = ("url", "max_tokens", "temperature", "disconnect", "invalid")
        found = {name: getattr(self, name) for name in names}
        return found | {"model": model, "suite": self.suite or "made up", "questions": self.prompts}
