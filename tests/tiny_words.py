"""Tokenizers that encode every character, trained in memory, and long made-up texts for them."""

import random
from functools import cache

from tiny import SPECIAL, TEMPLATE
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

NOUNS = "harbour market engine garden council bridge winter orchard letter museum river kitchen"
VERBS = "crossed repaired measured followed painted questioned carried admired closed counted"
ADJECTIVES = "quiet wooden northern bright narrow famous hollow early patient distant"
SAMPLE = (
    "def add(one, two):\n    return one + two\n\n\n日本語の文章です。東京は大きい。\n\nWhat, why? "
)


def made_up_text(sentences, seed=0):
    """Paragraphs of plain sentences; the same for the same seed."""
    draw = random.Random(seed)
    nouns, verbs, adjectives = NOUNS.split(), VERBS.split(), ADJECTIVES.split()
    text = ""
    for number in range(1, sentences + 1):
        one, other = draw.choice(nouns), draw.choice(nouns)
        text += f"The {draw.choice(adjectives)} {one} {draw.choice(verbs)} a {other}, "
        text += f"number {draw.randrange(99)}."
        text += "\n\n" if number % 6 == 0 else " "
    return text.strip()


@cache
def byte_tokenizer():
    """Byte-level BPE, as of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
    )
    tokenizer.train_from_iterator([SAMPLE, made_up_text(300)], trainer)
    return _fast(tokenizer)


@cache
def space_tokenizer():
    """Words with their spaces, other characters as bytes, as of Llama 2 and Mistral."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [*map(chr, range(33, 127)), "▁"]
    words = [f"▁{word}" for word in {*made_up_text(200).split()} if len(word) > 1]
    pieces = [*SPECIAL, "<unk>", *bytes_, *letters, *sorted(words)]
    merges = []
    for word in sorted(words):
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            pieces.append(word[:end])
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=list(dict.fromkeys(merges)),
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _fast(tokenizer)


def _fast(tokenizer):
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL[1:]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast
