"""A model's tokenizer without its weights, and what tells two of them apart."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from graft.errors import CheckpointError
from graft.models.checkpoints.pretrained import locate

# Words, spaces, digits, code, accents, scripts and an emoji: where tokenizers differ.
PROBE = "The year's 12,345 files:\n\tdef naïve(x): return x**2  # 数据 Привет 😀 don't   stop\r\n"


def read_tokenizer(name: str) -> Any:  # noqa: ANN401 (a transformers fast tokenizer)
    """The fast tokenizer of a model: a known name, a hub id, a folder or a GGUF file."""
    import transformers

    folder = locate(name).folder
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{name}: {str(error).splitlines()[0][:200]}") from error
    if not tokenizer.is_fast:
        raise CheckpointError(f"{name} has no fast tokenizer (tokenizer.json)")
    return tokenizer


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
