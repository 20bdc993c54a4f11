"""A checkpoint's tokenizer: the ids and texts of transformers', without importing transformers.

transformers knows dozens of tokenizer classes and their exceptions. What it builds in the end is a
`tokenizers.Tokenizer` and a few settings: both can be saved and read again (`load_record.py`).
"""

import hashlib
import json
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from graft.errors import CheckpointError
from graft.models.checkpoints.chat_template import render_chat
from graft.models.checkpoints.pretrained import Checkpoint, locate

# Words, spaces, digits, code, accents, scripts and an emoji: where tokenizers differ.
PROBE = "The year's 12,345 files:\n\tdef naïve(x): return x**2  # 数据 Привет 😀 don't   stop\r\n"
# What `Tokenizer` does itself: classes of transformers that do one of these in another way are
# used as they are.
REPLACED = (
    "__call__", "_encode_plus", "encode", "decode", "_decode", "clean_up_tokenization",
    "convert_ids_to_tokens", "get_vocab", "apply_chat_template", "get_chat_template",
)  # fmt: skip
CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What a `tokenizers.Tokenizer` does not hold."""

    special_tokens: dict[str, str]  # by role, such as "eos_token"
    chat_template: str | dict[str, str] | None  # by name where there are several
    cleans_up: bool  # spaces before punctuation, when ids are decoded
    splits_special: bool  # special tokens in a text are text


class Encoding(dict):
    """`input_ids`, and `offset_mapping` where it was wanted."""

    @property
    def input_ids(self) -> list[int]:
        """Token ids."""
        return self["input_ids"]


class Tokenizer:
    """The part of transformers' tokenizers that this package uses, with the same names."""

    is_fast = True

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self.backend_tokenizer, self.settings = backend, settings
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = settings.splits_special
        self.chat_template = settings.chat_template
        self.special_tokens_map = settings.special_tokens

    @property
    def eos_token_id(self) -> int | None:
        """The id of the end-of-text token, if there is one."""
        token = self.special_tokens_map.get("eos_token")
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    def __call__(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        verbose: bool = False,  # noqa: ARG002 (transformers' own)
    ) -> Encoding:
        """Token ids of a text, and the characters [from, to) of each where they are wanted."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        found = Encoding(input_ids=encoded.ids)
        if return_offsets_mapping:
            found["offset_mapping"] = encoded.offsets
        return found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: int | list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        tokens = [ids] if isinstance(ids, int) else ids
        text = self.backend_tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)
        if self.settings.cleans_up:
            for piece in CLEANED:
                text = text.replace(piece, piece.strip())
        return text

    def convert_ids_to_tokens(self, ids: int | list[int]) -> str | list[str]:
        """The vocabulary's own spelling."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(each)) for each in ids]

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def get_vocab(self) -> dict[str, int]:
        """Ids by token."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        tokenize: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,  # noqa: ANN401 (the template's own)
    ) -> str:
        """The text of a chat; ids are not made here."""
        assert not tokenize, "encode the text instead"
        if not messages:
            raise ValueError("a chat needs at least one message")
        template = self._template(with_tools=tools is not None)
        return render_chat(template, messages, tools=tools, **(self.special_tokens_map | options))

    def _template(self, *, with_tools: bool) -> str:
        known = self.chat_template
        if known is None:
            raise ValueError("this tokenizer has no chat template")
        if isinstance(known, str):
            return known
        name = "tool_use" if with_tools and "tool_use" in known else "default"
        if name not in known:
            raise ValueError(f"this tokenizer has several chat templates: {', '.join(known)}")
        return known[name]


def from_transformers(theirs: Any) -> Tokenizer | None:  # noqa: ANN401
    """The same tokenizer, or None where transformers' class does something of its own."""
    from transformers import PreTrainedTokenizerFast

    kind = type(theirs)
    if not theirs.is_fast or not all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name, None) for name in REPLACED
    ):
        return None
    backend = tokenizers.Tokenizer.from_str(serialised(theirs))
    # Newer versions of transformers leave BPE's spaces alone unless this is set.
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    keeps_bpe = type(backend.model).__name__ == "BPE" and not getattr(theirs, forced, True)
    settings = TokenizerSettings(
        special_tokens=dict(theirs.special_tokens_map),
        chat_template=theirs.chat_template,
        cleans_up=bool(theirs.clean_up_tokenization_spaces) and not keeps_bpe,
        splits_special=bool(theirs.split_special_tokens),
    )
    return Tokenizer(backend, settings)


def transformers_tokenizer(checkpoint: Checkpoint) -> Any:  # noqa: ANN401
    """A checkpoint's tokenizer as transformers builds it."""
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(checkpoint.folder)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0][:200]
        raise CheckpointError(f"{checkpoint.name}: {reason}") from error


def read_tokenizer(name: str) -> Any:  # noqa: ANN401 (a transformers fast tokenizer)
    """The fast tokenizer of a model: a known name, a hub id, a folder or a GGUF file."""
    tokenizer = transformers_tokenizer(locate(name))
    if not tokenizer.is_fast:
        raise CheckpointError(f"{name} has no fast tokenizer (tokenizer.json)")
    return tokenizer


def serialised(tokenizer: Any) -> str:  # noqa: ANN401
    """tokenizer.json of a fast tokenizer, without padding and truncation."""
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return backend.to_str()


def tokenizer_fingerprint(tokenizer: Any) -> str:  # noqa: ANN401
    """Hex digest of all tokens with their ids, and of how a difficult text is cut into them."""
    backend = tokenizer.backend_tokenizer
    vocabulary = sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    content = [vocabulary, tokenizer(PROBE, add_special_tokens=False).input_ids]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def vocabulary_size(tokenizer: Any) -> int:  # noqa: ANN401
    """One more than the greatest id."""
    return max(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def batch_encoder(tokenizer: Any) -> Callable[[list[str]], list[np.ndarray]]:  # noqa: ANN401
    """Texts to ids, many at a time on the tokenizer's own threads, without special tokens."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: list[str]) -> list[np.ndarray]:
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    return encode
