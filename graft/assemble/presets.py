"""The names and descriptions of presets, and what each needs."""

from graft.errors import InputError

PRESETS: dict[str, str] = {
    "auto": "copies from prompt, documents and output, limited by the measured step cost",
    "plain": "no drafting: one token per step",
    "pld": "prompt lookup decoding: 3-grams, 10 tokens (Saxena 2023)",
    "copy": "CASD's copier: the two longest matches up to 10 tokens, 10 tokens each",
    "igpg": "IDR2's n-gram drafting: 5-grams with back-off, 7 tokens",
}
SHORT_PRESETS: dict[str, str] = {
    "rapid": "the target's own chain, or a smaller draft model's, from retrieved passages of a "
    "long prompt (Chen et al. 2025)",
}
MODEL_PRESETS: dict[str, str] = {
    "sd": "a draft model's chain, limited by the measured step cost (speculative decoding)",
    "sd-tree": "a draft model's tree by EAGLE-2's rule, limited by the measured step cost",
    "rapid-up": "a larger draft model's chain of 10 tokens from retrieved passages",
}
SELF_PRESETS: dict[str, str] = {
    "window": "the target over a window of its own KV cache: 32 first and 1,024 latest tokens, "
    "limited by the measured step cost",
    "magicdec": "MagicDec: the target over its 16 first and 241 latest tokens, 3 draft tokens "
    "(Chen et al. 2024)",
    "magicdec-longspec": "the same over 32 and 1,024, as LongSpec compares with it",
    "magicdec-rapid": "the same over 4 and 4,092, as RAPID compares with it",
    "magicdec-snapkv": "the same over 32 last tokens of the prompt and 225 that they attend to",
    "triforce": "TriForce: copies verified by the target over 4,096 tokens retrieved from its "
    "KV cache, 6 draft tokens (Sun et al. 2024)",
}  # each with the target's own weights
HEAD_PRESETS: dict[str, str] = {
    "head": "a draft head's tree, its shape chosen by the measured step cost",
    "eagle2": "EAGLE-2's tree: the 10 best at 6 levels, 59 nodes (Li et al. 2024)",
    "longspec": "LongSpec's beam: 4, 16, 16, 16, 16 nodes (Yang et al. 2025)",
    "triforce-head": "TriForce with a draft head's chain in place of copies",
}
EITHER_PRESETS: dict[str, str] = {
    "casd": "a draft head's or model's tree and CASD's copier, nothing pruned",
    "rasd-pld": "a draft head's or model's tree and retrieved branches that it confirms (RASD)",
}
STORE_PRESETS: dict[str, str] = {
    "store": "copies from a datastore of `graft index`, limited by the measured step cost",
    "rest": "copies from a datastore by REST's rule: 5,000 places, 10 tokens, 64 prefixes "
    "(He et al. 2023)",
    "rasd-rest": "a draft head's or model's tree and REST's branches that it confirms (RASD)",
}  # each with the store's folder behind a colon
RETRIEVING = ("rapid", "rapid-up")  # presets that draft from retrieved passages
SAMPLED_PRESETS = ("sd", *RETRIEVING)  # chains that carry q for the verifiers that need it


def presets_with(*, draft_model: bool, head: bool) -> dict[str, str]:
    """The presets of an engine with or without a draft model or a head."""
    return {
        **PRESETS,
        **SHORT_PRESETS,
        **SELF_PRESETS,
        **(MODEL_PRESETS if draft_model else {}),
        **(HEAD_PRESETS if head else {}),
        **(EITHER_PRESETS if draft_model or head else {}),
    }


def check_draft(name: str, *, draft_model: bool, head: bool = False) -> None:
    """Raise InputError for a preset, or several joined by +, that cannot be made. The kind of a
    head is checked when it is loaded."""
    known = presets_with(draft_model=draft_model, head=head)
    for part in name.split("+"):
        preset, _, folder = part.partition(":")
        if preset in MODEL_PRESETS and not draft_model:
            raise InputError(f"draft {part!r} needs a draft model; name one (--draft-model)")
        if preset in HEAD_PRESETS and not head:
            raise InputError(f"draft {part!r} needs a draft head; name its folder (--head)")
        if _needs_either(preset) and not (draft_model or head):
            raise InputError(
                f"draft {part!r} needs a draft model or a head; name one (--draft-model, --head)"
            )
        if preset in STORE_PRESETS and not folder:
            raise InputError(f"draft {preset!r} needs a datastore; name it: {preset}:FOLDER")
        if preset not in STORE_PRESETS and part not in known:
            stores = [f"{preset}:FOLDER" for preset in STORE_PRESETS]
            raise InputError(
                f"unknown draft {part!r}; choose one of {', '.join([*known, *stores])}"
            )


def retrieves(name: str) -> bool:
    """Whether a preset, or one of several joined by +, drafts from retrieved passages."""
    return any(part in RETRIEVING for part in name.split("+"))


def runs_network(part: str) -> bool:
    """Whether a preset runs a network; `part` may have a datastore's folder after a colon."""
    preset = part.partition(":")[0]
    own = SHORT_PRESETS | MODEL_PRESETS | SELF_PRESETS | HEAD_PRESETS
    return preset in own or _needs_either(preset)


def _needs_either(preset: str) -> bool:
    return preset in EITHER_PRESETS or preset == "rasd-rest"
