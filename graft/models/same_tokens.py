"""Checks that a draft model has the target's tokenizer."""

from graft.errors import InputError
from graft.models.load import LoadedModel

MIN_COMMON = 0.98  # of the tokens; models of one family differ in a few special tokens


def check_same_tokens(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft model whose ids are other tokens; a few extra tokens do no harm."""
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    common = ours.keys() & theirs.keys()
    different = sum(ours[token] != theirs[token] for token in common)
    if different or len(common) < MIN_COMMON * max(len(ours), len(theirs)):
        alike = len(common) - different
        raise InputError(
            f"{draft.checkpoint.name} has another tokenizer than {target.checkpoint.name} "
            f"({alike} of {len(ours)} tokens are the same); choose a draft model of the same family"
        )
