"""Token budgets of a short prompt, by the length of the long one."""

MIN_TOKENS = 4096
SHARE = 24


def capped(length: int) -> int:
    """RAPID's budget, but at most a quarter of the prompt."""
    return min(rapid(length), length // 4)


def rapid(length: int) -> int:
    """RAPID's budget: max(4096, length / 24)."""
    return max(MIN_TOKENS, length // SHARE)
