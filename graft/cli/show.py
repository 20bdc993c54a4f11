"""What an answer looks like: its tokens as they come, and the line of numbers under it."""

import sys
from collections.abc import Callable
from typing import Any

# The target's own tokens keep the terminal's colour.
SOURCE_COLORS = {
    "prompt": "green",
    "document": "cyan",
    "prediction": "magenta",
    "output": "yellow",
    "model": "bright_blue",
    "short context": "bright_cyan",
    "head": "bright_magenta",
    "window": "bright_cyan",
    "SnapKV": "bright_cyan",
    "retrieved KV": "bright_yellow",
    "both": "bright_green",
}
OTHER_COLOR = "blue"


class Waiting:
    """A moving line on a terminal's stderr while nothing else can be shown; `stop` removes it."""

    def __init__(self, text: str) -> None:
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()

    def say(self, text: str) -> None:
        """Another text."""
        if self._status:
            self._status.update(text)

    def stop(self) -> None:
        """Take the line away; may be called again."""
        if self._status:
            self._status.stop()

    def __enter__(self) -> "Waiting":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def token_printer(*, color: bool) -> Callable[[Any], None]:
    """A function that writes one token event to stdout at once, coloured by who guessed it."""

    def plain(event: Any) -> None:  # noqa: ANN401 (a TokenEvent)
        sys.stdout.write(event.text)
        sys.stdout.flush()

    if not color:
        return plain
    from rich.style import Style

    def colored(event: Any) -> None:  # noqa: ANN401 (a TokenEvent)
        style = Style.parse(color_of(event.source))
        sys.stdout.write(style.render(event.text) if event.source else event.text)
        sys.stdout.flush()

    return colored


def color_of(source: str) -> str:
    """The colour of tokens guessed by `source`; the target itself is ""."""
    return SOURCE_COLORS.get(source, OTHER_COLOR) if source else "default"


def end_line(text: str) -> None:
    """Finish an answer's last line, so that what follows starts on its own."""
    if not text.endswith("\n"):
        print(flush=True)


def footer(given: Any, *, color: bool) -> None:  # noqa: ANN401 (an Answer)
    """One dim line on stderr; with `color`, the shares are also the legend of the colours."""
    from rich.console import Console
    from rich.text import Text

    stats = given.result.stats
    kept = f" ({stats.cached_tokens:,} of {stats.prompt_tokens:,} prompt tokens kept from before)"
    line = Text(
        f"{stats.tokens} tokens · {stats.tokens_per_second:.1f} tokens/s · "
        f"{stats.tokens_per_step:.2f} tokens per step · "
        f"first token {given.first_token_seconds:.2f} s{kept if stats.cached_tokens else ''} · "
        "guessed by: ",
        style="dim",
    )
    for place, (source, share) in enumerate(token_shares(stats).items()):
        line.append(", " if place else "", style="dim")
        label = f"{source or 'nobody (the model itself)'} {share:.0%}"
        line.append(label, style=f"not dim {color_of(source)}" if color else "dim")
    line.append(_inner(stats) + _difference(given.result.promise), style="dim")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if color:
        console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=True)
    console.print(line)


def _difference(promise: Any) -> str:  # noqa: ANN401 (a Promise)
    """How the answer may differ from plain decoding's; "" where it may not."""
    if not promise.lossless:
        return " · not lossless: the verifier changes the model's distribution"
    return f" · {promise} as plain decoding, another text" if promise else ""


def _inner(stats: Any) -> str:  # noqa: ANN401 (a Stats)
    """What a drafter of several tiers took of its lowest one's guesses."""
    taken = [
        f"{stats.inner_accepted_by_source.get(source, 0)} of {count} by {source}"
        for source, count in stats.inner_drafted_by_source.items()
    ]
    return f" · taken below: {', '.join(taken)}" if taken else ""


def token_shares(stats: Any) -> dict[str, float]:  # noqa: ANN401 (a Stats)
    """Share of the answer's tokens by who guessed them, largest first; "" is the target itself."""
    accepted = {source: count for source, count in stats.accepted_by_source.items() if count}
    accepted[""] = stats.tokens - sum(accepted.values())
    total = max(stats.tokens, 1)
    ranked = sorted(accepted.items(), key=lambda item: -item[1])
    return {source: count / total for source, count in ranked}
