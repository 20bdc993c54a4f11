"""Tiny random models and engines around them, made in memory: no files, no downloads.

Embedding and output weights have a large spread and the layers a small one, so the last token
mostly determines the next: output repeats in cycles (drafts are accepted) and leaves them now and
then (drafts are rejected), greedy because of the context, sampled because of the noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from graft.assemble.drafters import Drafters
from graft.assemble.resources import DraftResources
from graft.decode.engine import Engine
from graft.draft.drafter import Drafter
from graft.draft.heads.head import DraftHead, growth_for
from graft.draft.models.chains import Chains
from graft.draft.models.model import DraftModel
from graft.draft.short_context.short_prompt import Shorten
from graft.match.pool import Pools
from graft.models.checkpoints.pretrained import Checkpoint
from graft.models.heads.files import Head
from graft.models.heads.load import run_head
from graft.models.language_model import Forward, LanguageModel
from graft.models.load import LoadedModel, build_forward
from graft.models.step_costs import REFERENCE, StepCosts
from graft.verify.verdict import Verifier
from graft.verify.walk import walk

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
END, IM_START, IM_END = range(3)
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ a", "e r", "o n", "Ġ w", "r e")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 128
SHARPNESS = 0.7  # spread of the output weights: how far the most probable token stands out
NARROW = 0.1  # spread of the layers' weights


def tiny_network(  # noqa: PLR0913
    kind: str = "llama",
    seed: int = 0,
    vocab: int = VOCABULARY,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    **more: Any,
) -> torch.nn.Module:
    """A random network in fp32 with eager attention; `more` goes to its config."""
    config_class, network_class = ARCHITECTURES[kind]
    settings = dict(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=2048,
        initializer_range=NARROW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    network = network_class(config_class(**(settings | more))).float().eval()
    network.get_output_embeddings().weight.data.normal_(0, SHARPNESS)
    network.get_input_embeddings().weight.data.normal_(0, 1)
    return network


ARCHITECTURES: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}


@cache
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 128 tokens: ASCII, the bytes of é, € and 😀, and a few merged pieces."""
    by_byte = _byte_letters()
    known = [*range(32, 127), *b"\n", *sorted(set("é€😀".encode()))]
    pieces = [*SPECIAL, *(by_byte[byte] for byte in known), *(m.replace(" ", "") for m in MERGES)]
    pieces += [f"<|unused{i}|>" for i in range(VOCABULARY - len(pieces))]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[tuple(merge.split()) for merge in MERGES],
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[END],
        additional_special_tokens=list(SPECIAL[1:]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def save_tiny(folder: Path, **options: Any) -> Path:
    """The folder, with a tiny network and its tokenizer."""
    tiny_network(**options).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def tiny_engine(  # noqa: PLR0913
    network: torch.nn.Module | None = None,
    *,
    forward: str | None = "panels",
    invariant: bool = False,
    drafters: Mapping[str, Drafter] | None = None,
    draft_model: DraftModel | None = None,
    heads: Sequence[Head] = (),
    context_length: int | None = None,
    eos_ids: frozenset[int] = frozenset({END}),
    verify: Verifier = walk,
    max_rows: int | None = None,
    wrap: Callable[[Forward], Forward] = lambda forward: forward,
    shorten: Shorten | None = None,
    chains: Chains | None = None,
    own_costs: StepCosts | None = None,
    pools: Pools | None = None,
    **options: Any,
) -> Engine:
    """An engine around a tiny network with every preset that `draft_model`, `heads` and `shorten`
    allow, and with `drafters`. The target's own drafts cost `own_costs`, by default a tenth of its
    steps; `options` are the engine's."""
    torch.set_num_threads(1)  # the products are too small to share
    network = tiny_network() if network is None else network
    built, name = build_forward(network, name="tiny", kind=forward, invariant=invariant)
    model = LanguageModel(
        wrap(built),
        vocabulary=network.config.vocab_size,
        context_length=context_length or network.config.max_position_embeddings,
        max_rows=max_rows,
    )
    checkpoint = Checkpoint("tiny", Path("nowhere"), "tiny")
    loaded = LoadedModel(model, tiny_tokenizer(), checkpoint, eos_ids, "fp32", "cpu", name)
    runners = [run_head(head, model, packed=name == "panels") for head in heads]
    by_kind = {
        each.config.kind: DraftHead(each, growth_for(each), costs_of(0.1)) for each in runners
    }
    itself = DraftModel(model, own_costs or costs_of(0.1), model.vocabulary)
    resources = DraftResources(
        draft_model, by_kind, itself, shorten, chains or Chains(), pools=pools
    )
    presets = Drafters(resources, tiny_tokenizer())
    presets.update(drafters or {})
    engine = Engine(loaded, presets, verify, costs_of(1.0), **options)
    if pools:
        engine.keep_answers(pools)
    return engine


def costs_of(share: float) -> StepCosts:
    """The reference costs, or a share of them."""
    costs = StepCosts.read(REFERENCE)
    seconds = tuple(tuple(share * second for second in row) for row in costs.seconds)
    return replace(costs, seconds=seconds)


def tiny_draft_model(  # noqa: PLR0913
    *,
    noise: float = 0.15,
    vocab: int = VOCABULARY,
    cost: float = 0.1,
    max_rows: int | None = None,
    context_length: int = 2048,
    forward: str = "panels",
    device: str = "cpu",
    wrap: Callable[[Forward], Forward] = lambda forward: forward,
) -> DraftModel:
    """A draft model that often agrees with the tiny target: its network with noise on all weights.
    A step costs `cost` of the target's."""
    network = tiny_network()
    generator = torch.Generator().manual_seed(1)
    for weight in network.parameters():
        spread = noise * weight.detach().std().item() if weight.dim() > 1 else 0.0
        weight.data += spread * torch.randn(weight.shape, generator=generator)
    if vocab != VOCABULARY:
        network.resize_token_embeddings(vocab, mean_resizing=False)
    built, _ = build_forward(network.to(device), name="tiny draft", kind=forward)
    model = LanguageModel(
        wrap(built), vocabulary=vocab, context_length=context_length, max_rows=max_rows
    )
    return DraftModel(model, costs_of(cost), VOCABULARY)
