"""The options of `graft bench --suite rag` as they are typed, and what they mean."""

from dataclasses import asdict, dataclass

from graft.bench.asked import AskedOfModels, as_load_options, context_tokens, listed
from graft.bench.rag.settings import RagSettings, as_way
from graft.errors import InputError


def check_baseline(settings: RagSettings, baseline: str | None) -> None:
    """Refuse one that will not be measured."""
    ways = [way.name for way in settings.ways]
    if baseline is not None and baseline not in ways:
        raise InputError(f"--baseline {baseline!r} is not among --way: {', '.join(ways)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RagAsked(AskedOfModels):
    """Lists are separated by commas; what is left out (None) is `RagSettings`' default."""

    policy: str | None = None
    way: str | None = None

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
