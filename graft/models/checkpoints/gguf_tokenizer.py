"""Tokenizer files from a GGUF's metadata.

Byte-level BPE is rebuilt here: the file only names the pre-tokenizer (`tokenizer.ggml.pre`), which
must match the model's training. SmolLM2 splits digits, Qwen2 normalises to NFC.
SentencePiece BPE (Llama 2, Mistral) has scores in place of merges.
"""

import json
from pathlib import Path
from typing import Any

from graft.errors import CheckpointError
from graft.models.checkpoints.gguf_reader import GgufFile, damaged

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
SPACE = "\u2581"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SPLITS = {"qwen2": QWEN2, "llama-bpe": LLAMA3, "llama3": LLAMA3}
DIGITS_ALONE = {"smollm", "starcoder"}
BYTE_LEVEL_ONLY = {"default", "gpt-2"}
ROLES = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json (with the chat template)."""
    tokens = all_tokens(gguf)
    kind = gguf.metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise CheckpointError(
            f"{gguf.path.name} has a tokenizer of kind {kind!r}, which is not converted; "
            "use the model's safetensors folder instead"
        )
    tokenizer = _byte_level(gguf, tokens) if kind == "gpt2" else _sentencepiece(gguf, tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.metadata[
            f"{gguf.metadata['general.architecture']}.context_length"
        ],
    }
    for ours, theirs in ROLES.items():
        index = gguf.metadata.get(f"tokenizer.ggml.{ours}_token_id")
        if index is not None and index < len(tokens):
            settings[f"{theirs}_token"] = tokens[index]
    if template := gguf.metadata.get("tokenizer.chat_template"):
        settings["chat_template"] = template
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def end_ids(gguf: GgufFile) -> list[int]:
    """All ids that end an answer: the file's own first, then turn and text ends by name."""
    meta = gguf.metadata
    ids = [meta.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    template = meta.get("tokenizer.chat_template", "")
    names = [name for name in TURN_ENDS if name in template] + list(TEXT_ENDS)
    types = meta.get("tokenizer.ggml.token_type", [])
    found = {
        token: index
        for index, token in enumerate(all_tokens(gguf))
        if token in names and (not types or types[index] == CONTROL)
    }
    ids += [found[name] for name in names if name in found]
    return list(dict.fromkeys(index for index in ids if index is not None))


def all_tokens(gguf: GgufFile) -> list[str]:
    """The vocabulary in the order of its ids."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(
            f"{gguf.path.name} carries no tokenizer; use the model's safetensors folder instead"
        )
    return tokens


def _byte_level(gguf: GgufFile, tokens: list[str]) -> Any:  # noqa: ANN401
    """A `tokenizers.Tokenizer` with the same ids as the file."""
    from tokenizers import Tokenizer, decoders, models

    meta = gguf.metadata
    types = meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise damaged(gguf.path, f"{len(types)} token types for {len(tokens)} tokens")
    vocabulary = {t: i for i, t in enumerate(tokens) if types[i] != UNUSED}
    merges = [tuple(m.split(" ")) for m in meta.get("tokenizer.ggml.merges", [])]
    pre = meta.get("tokenizer.ggml.pre", "default")
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=pre in ("llama-bpe", "llama3"))
    except Exception as error:  # the Rust side raises plain Exception for an unknown merge
        raise damaged(gguf.path, f"tokenizer: {error}") from error
    tokenizer = Tokenizer(model)
    _set_splitting(tokenizer, pre, gguf.path.name)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, tokens, types)
    if meta.get("tokenizer.ggml.add_bos_token", pre in ("llama-bpe", "llama3")):
        _start_with(tokenizer, tokens, meta.get("tokenizer.ggml.bos_token_id"))
    return tokenizer


def _sentencepiece(gguf: GgufFile, tokens: list[str]) -> Any:  # noqa: ANN401
    """Spaces become "\u2581", one is put in front, unknown characters fall back to bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    meta = gguf.metadata
    types = meta["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges(vocabulary, meta["tokenizer.ggml.scores"])
    unknown = tokens[meta.get("tokenizer.ggml.unknown_token_id", 0)]
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    steps = [normalizers.Replace(" ", SPACE)]
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if meta.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(parts)
    _add_special(tokenizer, tokens, types)
    if meta.get("tokenizer.ggml.add_bos_token", True):
        _start_with(tokenizer, tokens, meta.get("tokenizer.ggml.bos_token_id"))
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best score of the result first."""
    found = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _add_special(tokenizer: Any, tokens: list[str], types: list[int]) -> None:  # noqa: ANN401
    from tokenizers import AddedToken

    for kind in (CONTROL, USER_DEFINED):
        extra = [t for t, k in zip(tokens, types, strict=True) if k == kind]
        special = kind == CONTROL
        tokenizer.add_tokens([AddedToken(t, special=special, normalized=False) for t in extra])


def _set_splitting(tokenizer: Any, pre: str, file_name: str) -> None:  # noqa: ANN401
    from tokenizers import Regex, normalizers, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
    if pre in SPLITS:
        first = pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    elif pre in DIGITS_ALONE:
        first = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, byte_level])
    elif pre in BYTE_LEVEL_ONLY:
        tokenizer.pre_tokenizer = byte_level
    else:
        known = ", ".join(sorted(SPLITS.keys() | DIGITS_ALONE | BYTE_LEVEL_ONLY))
        raise CheckpointError(
            f"{file_name} uses the tokenizer {pre!r}; known are {known}: "
            "use the model's safetensors folder instead"
        )
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()


def _start_with(tokenizer: Any, tokens: list[str], bos: int | None) -> None:  # noqa: ANN401
    from tokenizers import processors

    if bos is not None and bos < len(tokens):
        start = f"{tokens[bos]}:0"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A:0", special_tokens=[(tokens[bos], bos)]
        )
