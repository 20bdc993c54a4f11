"""Prompts as token ids, the same for every variant."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.decode.cut import Cutter
from benchmarks.decode.settings import WHOLE, DecodeSettings
from benchmarks.suites.task import Prompt, limited
from graft.bench.measure import PromptTokens
from graft.bench.sizes import short
from graft.errors import InputError
from graft.models.load import end_tokens, longest_context

MIN_MODEL_LEN = 8192  # of other engines, where the model allows it: vLLM compiles by length
MIN_FILLED = 0.9  # of a context: a shorter prompt is not measured there


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt and its token ids."""

    prompt: Prompt
    token_ids: list[int]

    @property
    def tokens(self) -> PromptTokens:
        """What is measured."""
        return PromptTokens(self.prompt.number, self.token_ids, self.prompt.category)


Cells = tuple[dict[int, list[Encoded]], list[str]]  # prompts by context, notes


@dataclass(frozen=True, slots=True)
class Workload:
    """`end_tokens` end an output; `max_model_len` is enough for the longest prompt and output;
    `notes` name prompts that are left out or cut."""

    prompts: dict[int, list[Encoded]]  # by context
    end_tokens: list[int]
    max_model_len: int
    notes: list[str]
    cutter: Cutter

    @property
    def by_number(self) -> dict[int, Prompt]:
        """Every prompt, whatever contexts it is cut to."""
        return {each.prompt.number: each.prompt for cell in self.prompts.values() for each in cell}


def encode(folder: Path, prompts: list[Prompt], settings: DecodeSettings) -> Workload:
    """Select at most `--limit` prompts and tokenize them with the chat template."""
    from transformers import AutoConfig

    longest = settings.context_length or longest_context(AutoConfig.from_pretrained(folder))
    cutter = _cutter(folder)
    if settings.contexts == (WHOLE,):
        encoded, notes = _whole(
            cutter, limited(prompts, settings.limit), longest, settings.output_tokens
        )
    else:
        encoded, notes = _at_contexts(cutter, prompts, settings, longest)
    lengths = [len(each.token_ids) for cell in encoded.values() for each in cell]
    needed = min(max(max(lengths) + settings.output_tokens, MIN_MODEL_LEN), longest)
    return Workload(encoded, end_tokens_of(folder), needed, notes, cutter)


def end_tokens_of(folder: Path) -> list[int]:
    """The ids that end a model's outputs."""
    from transformers import AutoConfig, GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:  # many folders have none
        generation = None
    own = AutoConfig.from_pretrained(folder).get_text_config().eos_token_id
    return sorted(end_tokens(generation, own, _cutter(folder).eos))


@lru_cache(1)
def _cutter(folder: Path) -> Cutter:
    """Kept: the next run mostly has the same documents and tokenizer."""
    from transformers import AutoTokenizer

    return Cutter(AutoTokenizer.from_pretrained(folder))


def _whole(cutter: Cutter, prompts: list[Prompt], longest: int, max_tokens: int) -> Cells:
    """Every prompt as it is, cut only where it is too long for the model."""
    fitting, cut = [], 0
    for prompt in prompts:
        tokens = cutter.fit(prompt, longest - max_tokens)
        if tokens is not None:
            fitting.append(Encoded(prompt, tokens))
            cut += bool(prompt.document) and cutter.bounds(prompt)[1] > longest - max_tokens
    if not fitting:
        raise InputError(f"no prompt fits the model's {longest} tokens; lower --max-tokens")
    notes = []
    if cut:
        notes.append(f"{cut} prompts are cut to the model's {longest} tokens")
    if left_out := len(prompts) - len(fitting):
        notes.append(f"{left_out} prompts are left out: too long for the model")
    return {WHOLE: fitting}, notes


def _at_contexts(
    cutter: Cutter, prompts: list[Prompt], settings: DecodeSettings, longest: int
) -> Cells:
    """Every prompt at every context it reaches.

    A limit takes those that reach the longest context first, so that a shorter one has the same
    prompts, and more only where these are too few.
    """
    if not any(prompt.document for prompt in prompts):
        raise InputError(
            f"--contexts cuts documents, and the prompts of {settings.suite} have none"
        )
    bounds = {prompt.number: cutter.bounds(prompt) for prompt in prompts}
    cells, notes, wanted = {}, [], set()
    for context in sorted(settings.contexts, reverse=True):
        tokens = _tokens_at(context, longest - settings.output_tokens)
        able = [p for p in prompts if _can_have(*bounds[p.number], context, tokens)]
        chosen = limited(able, settings.limit, wanted)
        wanted = {prompt.number for prompt in chosen}
        fitted = [(prompt, cutter.fit(prompt, tokens)) for prompt in chosen]
        cells[context] = [Encoded(prompt, ids) for prompt, ids in fitted if ids]
        if not cells[context]:
            most = max(whole for _, whole in bounds.values())
            raise InputError(f"no prompt reaches --contexts {context}; the longest has {most}")
        if left_out := len(prompts) - len(able) + len(chosen) - len(cells[context]):
            notes.append(
                f"context {short(context)}: {left_out} of {len(prompts)} prompts are left out: "
                "they cannot have that length"
            )
    return {context: cells[context] for context in sorted(cells)}, notes[::-1]


def _tokens_at(context: int, available: int) -> int:
    """The length of prompts there: a little less where the output needs the end of the context."""
    if available < MIN_FILLED * context:
        raise InputError(
            f"--contexts {context} leaves no tokens for an output; lower it or --max-tokens"
        )
    return min(context, available)


def _can_have(shortest: int, whole: int, context: int, tokens: int) -> bool:
    """Whether a prompt fills a context and can be cut to it."""
    return shortest < tokens and whole >= MIN_FILLED * context
