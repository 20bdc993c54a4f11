"""Token budgets of a short prompt, by the length of the long one."""

from graft.errors import InputError

MIN_BUDGET = 64
MIN_TOKENS = 4096
SHARE = 24


def capped(length: int) -> int:
    """RAPID's budget, but at most a quarter of the prompt."""
    return min(rapid(length), length // 4)


def rapid(length: int) -> int:
    """RAPID's budget: max(4096, length / 24)."""
    return max(MIN_TOKENS, length // SHARE)


BUDGETS = {"capped": capped, "rapid": rapid}


def check_budget(budget: int | str) -> None:
    """Raise InputError unless it is the name of a budget or a number of tokens."""
    known = budget in BUDGETS if isinstance(budget, str) else budget >= MIN_BUDGET
    if not known:
        raise InputError(
            f"retrieved must be a number of tokens from {MIN_BUDGET} on, or one of "
            f"{', '.join(BUDGETS)}, not {budget!r}"
        )
