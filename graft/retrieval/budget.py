"""How many tokens a short prompt may have, by those of the long one."""

LEAST = 4096
SHARE = 24


def capped(length: int) -> int:
    """RAPID's budget, but at most a quarter: else a short prompt would hardly be shorter."""
    return min(rapid(length), length // 4)


def rapid(length: int) -> int:
    """The paper's: 4096 tokens, or a 24th of a prompt that is so long that this is more."""
    return max(LEAST, length // SHARE)
