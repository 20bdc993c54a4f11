"""Drafted and plain decoding compared: are the tokens the same, and how much time was saved?"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from graft.cli.answer import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same prompt decoded with and without drafting."""

    drafted: Answer
    plain: Answer

    @property
    def same_tokens(self) -> int:
        """Leading tokens on which both runs agree."""
        pairs = zip(self.drafted.result.token_ids, self.plain.result.token_ids, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @property
    def identical(self) -> bool:
        """Whether both runs generated exactly the same tokens."""
        return self.drafted.result.token_ids == self.plain.result.token_ids

    @property
    def decode_speedup(self) -> float | None:
        """Plain decode time over drafted decode time, without prefill."""
        return _ratio(
            self.plain.result.stats.decode_seconds, self.drafted.result.stats.decode_seconds
        )

    @property
    def end_to_end_speedup(self) -> float | None:
        """Plain time over drafted time, from the question to the last token."""
        return _ratio(self.plain.total_seconds, self.drafted.total_seconds)

    def verdict(self, dtype: str, *, exact: bool) -> str:
        """One line: identical, or where the texts differ and whether that is a bug."""
        if self.identical:
            return f"identical: {len(self.plain.result.token_ids)} tokens"
        promise = self.drafted.result.promise
        if promise:
            return f"different at token {self.same_tokens + 1}, as the verifier allows: {promise}"
        where = f"numerically different at token {self.same_tokens + 1}"
        if exact or dtype == "fp32":
            return f"{where}; this must not happen with this model: please report it"
        return f"{where}; {dtype} rounds differently when a step has more rows; see --invariant"

    def as_dict(self) -> dict[str, Any]:
        """The comparison for --json."""
        return {
            "identical": self.identical,
            "same_tokens": self.same_tokens,
            "decode_speedup": self.decode_speedup,
            "end_to_end_speedup": self.end_to_end_speedup,
            "drafted": _times(self.drafted),
            "plain": {**_times(self.plain), "stats": self.plain.result.stats.as_dict()},
        }


def _ratio(plain: float, drafted: float) -> float | None:
    return plain / drafted if drafted > 0 else None


def _times(given: Answer) -> dict[str, Any]:
    return {
        "draft": given.draft,
        "tokens_per_second": given.result.stats.tokens_per_second,
        "decode_seconds": given.result.stats.decode_seconds,
        "time_to_first_token": given.first_token_seconds,
        "total_seconds": given.total_seconds,
    }


def show_comparison(comparison: Comparison, dtype: str, *, exact: bool) -> None:
    """Print the verdict, a row per run, and both speedups."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "tokens/s", "decode", "first token", "total", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for given in (comparison.plain, comparison.drafted):
        table.add_row(
            given.draft,
            f"{given.result.stats.tokens_per_second:.1f}",
            f"{given.result.stats.decode_seconds:.2f} s",
            f"{given.first_token_seconds:.2f} s",
            f"{given.total_seconds:.2f} s",
        )
    console = Console(highlight=False)
    console.print()
    console.print(comparison.verdict(dtype, exact=exact), style="bold", soft_wrap=True)
    console.print(table)
    console.print(
        f"{_speedup(comparison.decode_speedup)} in decoding, "
        f"{_speedup(comparison.end_to_end_speedup)} end to end",
        soft_wrap=True,
    )


def _speedup(ratio: float | None) -> str:
    return "not measurable" if ratio is None else f"{ratio:.2f}x"
