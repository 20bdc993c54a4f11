"""Drafted and plain decoding side by side: are the tokens the same, and how much time was saved?"""

from dataclasses import dataclass
from typing import Any

from graft.cli.answer import Answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """`same_tokens` counts the leading tokens on which both runs agree."""

    drafted: Answer
    plain: Answer

    @property
    def same_tokens(self) -> int:
        """Tokens before the first difference."""
        pairs = zip(self.drafted.result.token_ids, self.plain.result.token_ids, strict=False)
        count = 0
        for drafted, plain in pairs:
            if drafted != plain:
                break
            count += 1
        return count

    @property
    def identical(self) -> bool:
        """Whether both runs wrote exactly the same tokens."""
        return self.drafted.result.token_ids == self.plain.result.token_ids

    @property
    def decode_speedup(self) -> float | None:
        """Plain decode time over drafted decode time; prefill is the same work in both."""
        return _ratio(
            self.plain.result.stats.decode_seconds, self.drafted.result.stats.decode_seconds
        )

    @property
    def end_to_end_speedup(self) -> float | None:
        """Plain time over drafted time, from the question to the last token."""
        return _ratio(self.plain.total_seconds, self.drafted.total_seconds)

    def verdict(self, dtype: str) -> str:
        """One line on losslessness; a difference in fp32 is a defect and says so."""
        if self.identical:
            return f"identical: {len(self.plain.result.token_ids)} tokens"
        promise = self.drafted.result.promise
        if promise:
            return f"different from token {self.same_tokens + 1}, as the verifier has it: {promise}"
        where = f"numerically different at token {self.same_tokens + 1}"
        if dtype in ("fp32", "float32"):
            return f"{where}; in fp32 this must not happen: please report it"
        return f"{where}; {dtype} rounds differently when a step has more rows; see --invariant"

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
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


def show_comparison(comparison: Comparison, dtype: str) -> None:
    """The verdict, a row per run, and both ratios."""
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
    console.print(comparison.verdict(dtype), style="bold", soft_wrap=True)
    console.print(table)
    console.print(
        f"{_times_as_fast(comparison.decode_speedup)} in decoding, "
        f"{_times_as_fast(comparison.end_to_end_speedup)} end to end",
        soft_wrap=True,
    )


def _times_as_fast(ratio: float | None) -> str:
    return "unmeasurable" if ratio is None else f"{ratio:.2f}x"
