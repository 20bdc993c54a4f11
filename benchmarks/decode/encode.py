"""Prompts as token ids, made once, so that every system reads and ends by the same ones."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from graft.bench.cut import Cutter
from graft.bench.settings import WHOLE, Settings
from graft.bench.sizes import short
from graft.bench.task import Prompt, limited
from graft.errors import InputError
from graft.models.load import end_tokens, longest_context

ROOM = 8192  # tokens that peers make room for, if the model reads so many
ENOUGH = 0.9  # of a context: a prompt that has less is not measured there


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt and its token ids."""

    prompt: Prompt
    token_ids: list[int]


Cells = tuple[dict[int, list[Encoded]], list[str]]  # prompts by context, notes


@dataclass(frozen=True, slots=True)
class Workload:
    """`end_tokens` end an answer; `room` is what a longest prompt and answer need, or more;
    `notes` say which prompts were left out or cut; `cutter` knows the tokenizer."""

    prompts: dict[int, list[Encoded]]  # by context
    end_tokens: list[int]
    room: int
    notes: list[str]
    cutter: Cutter

    @property
    def asked(self) -> list[Prompt]:
        """Every prompt once, whatever contexts it is cut to."""
        found = {each.prompt.number: each.prompt for cell in self.prompts.values() for each in cell}
        return list(found.values())


def encode(folder: Path, prompts: list[Prompt], settings: Settings) -> Workload:
    """Choose at most `--limit` prompts and tokenize them as the model's chat template has them."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    most = settings.context_length or longest_context(config)
    cutter = _cutter(folder)
    if settings.contexts == (WHOLE,):
        encoded, notes = _whole(cutter, limited(prompts, settings.limit), most, settings.max_tokens)
    else:
        encoded, notes = _at_contexts(cutter, prompts, settings, most)
    try:
        generation = GenerationConfig.from_pretrained(folder).eos_token_id
    except OSError:  # many folders have none
        generation = None
    ends = end_tokens(generation, config.get_text_config().eos_token_id, cutter.eos)
    lengths = [len(each.token_ids) for cell in encoded.values() for each in cell]
    # The same for any choice of prompts where it can be: vLLM compiles anew for another length.
    room = min(max(max(lengths) + settings.max_tokens, ROOM), most)
    return Workload(encoded, sorted(ends), room, notes, cutter)


@lru_cache(1)
def _cutter(folder: Path) -> Cutter:
    """The next run mostly has the same documents for the same tokenizer."""
    from transformers import AutoTokenizer

    return Cutter(AutoTokenizer.from_pretrained(folder))


def _whole(cutter: Cutter, prompts: list[Prompt], most: int, max_tokens: int) -> Cells:
    """Every prompt as it is, cut only if the model could not read it."""
    fitting, cut = [], 0
    for prompt in prompts:
        tokens = cutter.fit(prompt, most - max_tokens)
        if tokens is not None:
            fitting.append(Encoded(prompt, tokens))
            cut += bool(prompt.document) and cutter.bounds(prompt)[1] > most - max_tokens
    if not fitting:
        raise InputError(f"no prompt fits the model's {most} tokens; lower --max-tokens")
    notes = []
    if cut:
        notes.append(f"{cut} prompts are cut to the model's {most} tokens")
    if left_out := len(prompts) - len(fitting):
        notes.append(f"{left_out} prompts are left out: too long for the model")
    return {WHOLE: fitting}, notes


def _at_contexts(cutter: Cutter, prompts: list[Prompt], settings: Settings, most: int) -> Cells:
    """Every prompt at every context it reaches.

    A limit takes those that reach the longest context first, so that a shorter one has the same
    prompts, and more only where these are too few.
    """
    if not any(prompt.document for prompt in prompts):
        raise InputError(f"--context cuts documents, and the prompts of {settings.suite} have none")
    bounds = {prompt.number: cutter.bounds(prompt) for prompt in prompts}
    cells, notes, wanted = {}, [], set()
    for context in sorted(settings.contexts, reverse=True):
        tokens = _tokens_at(context, most - settings.max_tokens)
        able = [p for p in prompts if _can_have(*bounds[p.number], context, tokens)]
        chosen = limited(able, settings.limit, wanted)
        wanted = {prompt.number for prompt in chosen}
        fitted = [(prompt, cutter.fit(prompt, tokens)) for prompt in chosen]
        cells[context] = [Encoded(prompt, ids) for prompt, ids in fitted if ids]
        if not cells[context]:
            longest = max(whole for _, whole in bounds.values())
            raise InputError(f"no prompt reaches --context {context}; the longest has {longest}")
        if left_out := len(prompts) - len(able) + len(chosen) - len(cells[context]):
            notes.append(
                f"context {short(context)}: {left_out} of {len(prompts)} prompts are left out, "
                "which cannot be given that length"
            )
    return {context: cells[context] for context in sorted(cells)}, notes[::-1]


def _tokens_at(context: int, room: int) -> int:
    """How long prompts are there: a little less where the answer needs the end of the room."""
    if room < ENOUGH * context:
        raise InputError(
            f"--context {context} leaves the model no room for an answer; lower it or --max-tokens"
        )
    return min(context, room)


def _can_have(fewest: int, whole: int, context: int, tokens: int) -> bool:
    """Whether a prompt fills a context and can be cut to its tokens."""
    return fewest < tokens and whole >= ENOUGH * context
