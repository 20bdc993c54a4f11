"""The options of `graft bench --suite rag` as they are typed, and what they mean."""

from dataclasses import asdict, dataclass
from pathlib import Path

from graft.bench.asked import as_load_options, context_tokens, listed
from graft.bench.rag.settings import RagSettings, as_way


@dataclass(frozen=True, slots=True, kw_only=True)
class RagAsked:
    """Lists are separated by commas; what is left out (None) is `RagSettings`' default."""

    data: Path | None = None
    category: str | None = None
    policy: str | None = None
    way: str | None = None
    model: str | None = None
    draft_model: str | None = None
    head: str | None = None
    dtype: str | None = None
    device: str | None = None
    context_length: str | None = None
    limit: int | None = None
    split: str | None = None
    max_tokens: int | None = None
    repeats: int | None = None
    load_options: str | None = None
    threads: int | None = None

    def settings(self) -> RagSettings:
        """Checked; InputError for what cannot be run."""
        given = asdict(self)
        data = given.pop("data")
        given |= {
            "sets": listed(given.pop("category")),
            "policies": listed(given.pop("policy")),
            "ways": tuple(map(as_way, listed(given.pop("way")) or ())) or None,
            "context_length": context_tokens(self.context_length),
            "load_options": as_load_options(self.load_options),
        }
        known = {name: value for name, value in given.items() if value is not None}
        return RagSettings(data=data, **known)
