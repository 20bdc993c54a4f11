"""How an answer is printed: its tokens as they are generated, and a line of statistics below."""

import json as json_module
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from graft.cli.answer import Answer
    from graft.decode.output import TokenEvent
    from graft.decode.stats import Stats
    from graft.rag.answer import Totals
    from graft.verify.verdict import Promise

# Tokens that the target sampled itself keep the terminal's colour.
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
FIRST_LINE_SECONDS, LINE_SECONDS = 3.0, 10.0  # of progress that is not on a terminal


class Spinner:
    """Progress on stderr: a moving line on a terminal, which `stop` removes; elsewhere a line after
    some seconds, and then one every LINE_SECONDS if the text changed."""

    def __init__(self, text: str) -> None:
        self._text, self._status = text, None
        self._stopped = threading.Event()
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        else:
            threading.Thread(target=self._print_lines, daemon=True).start()

    def update(self, text: str) -> None:
        """Show another text."""
        self._text = text
        if self._status:
            self._status.update(text)

    def stop(self) -> None:
        """Remove the line; may be called again."""
        self._stopped.set()
        if self._status:
            self._status.stop()

    def _print_lines(self) -> None:
        seconds, shown = FIRST_LINE_SECONDS, ""
        while not self._stopped.wait(seconds):
            if self._text != shown:
                print(self._text, file=sys.stderr, flush=True)
            seconds, shown = LINE_SECONDS, self._text

    def __enter__(self) -> "Spinner":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def token_printer(*, color: bool) -> Callable[["TokenEvent"], None]:
    """A function that writes one token event to stdout, coloured by the source of its draft."""

    def show(event: "TokenEvent") -> None:
        text = event.text
        if color and event.source:
            from rich.style import Style

            text = Style.parse(color_of(event.source)).render(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    return show


def print_result(state: dict[str, Any], text: str, *, json: bool) -> None:
    """Print the result of a command: one JSON object, or a text."""
    print(json_module.dumps(state, indent=2, ensure_ascii=False) if json else text)


def color_of(source: str) -> str:
    """The colour of accepted tokens from `source`; "" is the target."""
    return SOURCE_COLORS.get(source, OTHER_COLOR) if source else "default"


def end_line(text: str) -> None:
    """Finish an answer's last line."""
    if not text.endswith("\n"):
        print(flush=True)


def footer(given: "Answer", *, color: bool, load_seconds: float = 0.0, server: str = "") -> None:
    """Print a dim line of statistics on stderr; with `color` it is also the colours' legend."""
    from rich.console import Console
    from rich.text import Text

    stats = given.result.stats
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"{stats.tokens_per_step:.2f} tokens per step",
        f"first token {given.first_token_seconds:.2f} s",
        *prompt_parts(stats),
        *([f"load {load_seconds:.1f} s"] if load_seconds else []),
        *([f"by the server at {server}"] if server else []),
    ]
    line = Text(" · ".join(parts), style="dim")
    line.append(" · ").append_text(_sources(stats, color=color))
    line.append(_inner(stats) + _difference(given.result.promise))
    console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=color or None)
    console.print(line)


def prompt_parts(stats: "Stats | Totals") -> list[str]:
    """Prefill speed and cached prompt tokens, where there are any."""
    speed, parts = prefill_tokens_per_second(stats), []
    if speed:
        parts.append(f"prefill {speed:,.0f} tokens/s")
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens:,} of {stats.prompt_tokens:,} prompt tokens cached")
    return parts


def prefill_tokens_per_second(stats: "Stats | Totals") -> float:
    """Speed over the prompt tokens that were computed; 0 where nothing was."""
    computed = stats.prompt_tokens - stats.cached_tokens - stats.approximate_tokens
    return computed / stats.prefill_seconds if stats.prefill_seconds > 0 else 0.0


def token_shares(stats: "Stats") -> dict[str, float]:
    """Share of the answer's tokens by drafter source, largest first; "" (the target) is last."""
    accepted = {source: count for source, count in stats.accepted_by_source.items() if count}
    ranked = dict(sorted(accepted.items(), key=lambda item: -item[1]))
    ranked[""] = stats.tokens - sum(accepted.values())
    return {source: count / max(stats.tokens, 1) for source, count in ranked.items()}


def _sources(stats: "Stats", *, color: bool) -> "Text":
    """Such as "accepted from: prompt 70 %, output 7 %; target 24 %"."""
    from rich.text import Text

    *accepted, target = (
        Text(
            f"{source or 'target'} {100 * share:.0f} %",
            style=f"not dim {color_of(source)}" if color else "dim",
        )
        for source, share in token_shares(stats).items()
    )
    if not accepted:
        return target
    line = Text("accepted from: ").append_text(Text(", ").join(accepted))
    return line.append("; ").append_text(target)


def _difference(promise: "Promise") -> str:
    """How the answer may differ from plain decoding; "" where it may not."""
    if not promise:  # the same text
        return ""
    if not promise.lossless:
        return " · not lossless: the verifier changes the model's distribution"
    return f" · {promise} as plain decoding, another text"


def _inner(stats: "Stats") -> str:
    """What a hierarchical drafter accepted from its lowest level."""
    accepted = [
        f"{stats.inner_accepted_by_source.get(source, 0)} of {count} from {source}"
        for source, count in stats.inner_drafted_by_source.items()
    ]
    return f" · lowest level accepted: {', '.join(accepted)}" if accepted else ""
