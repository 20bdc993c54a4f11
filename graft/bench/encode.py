"""Prompts as token ids, made once, so that every system reads and ends by the same ones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.bench.task import Prompt
from graft.decode.text import Encoder
from graft.errors import InputError
from graft.models.load import context_length, end_tokens

ROOM = 8192  # tokens that peers make room for, if the model reads so many


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt and its token ids."""

    prompt: Prompt
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Workload:
    """`end_tokens` end an answer; `room` is what a longest prompt and answer need, or more;
    `left_out` prompts did not fit the model."""

    prompts: list[Encoded]
    end_tokens: list[int]
    room: int
    left_out: int


def encode(folder: Path, prompts: list[Prompt], max_tokens: int) -> Workload:
    """Tokenize with the model's own tokenizer and template; what does not fit is left out."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    most = context_length(config)
    encoded = [Encoded(prompt, token_ids(tokenizer, prompt.content)) for prompt in prompts]
    fitting = [e for e in encoded if len(e.token_ids) + max_tokens <= most]
    if not fitting:
        raise InputError(f"no prompt fits the model's {most} tokens; lower --max-tokens")
    try:
        generation = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:  # many folders have none
        generation = None
    ends = end_tokens(generation, config.get_text_config().eos_token_id, tokenizer.eos_token_id)
    longest = max(len(e.token_ids) for e in fitting) + max_tokens
    # The same for any choice of prompts where it can be: vLLM compiles anew for another length.
    room = min(max(longest, ROOM), most)
    return Workload(fitting, sorted(ends), room, len(encoded) - len(fitting))


def token_ids(tokenizer: Any, content: str | list[dict[str, str]]) -> list[int]:  # noqa: ANN401
    """As the engine reads it: text as it is, chat messages through the template."""
    if not isinstance(content, str) and not tokenizer.chat_template:
        raise InputError(
            "the model has no chat template, which this suite needs; take a chat model"
        )
    return Encoder(tokenizer, len(tokenizer)).prompt(content).tokens
