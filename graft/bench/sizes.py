"""Numbers of tokens as users write them: 4k is 4096."""

THOUSAND = 1024


def size(text: str) -> int:
    """A whole number, perhaps with a k behind it; ValueError for anything else."""
    text = text.strip().lower()
    return int(text.removesuffix("k")) * (THOUSAND if text.endswith("k") else 1)


def short(tokens: int) -> str:
    """4096 is 4K, 1000 is 1000."""
    whole, rest = divmod(tokens, THOUSAND)
    return f"{whole}K" if whole and not rest else str(tokens)
