"""Characters that PDF and HTML carry for the eye and that are noise as text."""

import re

# Control characters, soft hyphens, zero-width spaces, icon fonts (private use), noncharacters.
_NOISE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b\u2060\ufeff\ue000-\uf8ff\ufdd0-\ufdef\ufffe\uffff]"
)
_PLAIN = str.maketrans(
    {
        "\u00a0": " ",
        "\u202f": " ",
        "\uf0b7": "•",  # the bullet of Symbol, as word processors write it
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
    }
)


def plain_characters(text: str) -> str:
    """The same words in plain characters: ligatures spelt out, invisible characters gone."""
    return _NOISE.sub("", text.translate(_PLAIN))
