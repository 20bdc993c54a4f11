"""Whether two models read and write the same tokens, as a target and its draft model must."""

from graft.errors import InputError
from graft.models.load import LoadedModel

LEAST_COMMON = 0.98  # of the tokens; members of a family differ in a few special ones


def check_same_tokens(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft model whose ids mean something else; some that only one knows do no harm."""
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    common = ours.keys() & theirs.keys()
    different = sum(ours[token] != theirs[token] for token in common)
    if different or len(common) < LEAST_COMMON * max(len(ours), len(theirs)):
        alike = len(common) - different
        raise InputError(
            f"{draft.checkpoint.name} has another tokenizer than {target.checkpoint.name} "
            f"({alike} of {len(ours)} tokens are the same); choose a draft model of the same family"
        )
