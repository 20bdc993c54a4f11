"""transformers worker: `generate`, plain, with prompt lookup (`lookup`), with a smaller model
(`assisted`) or compiled (`compiled`).

A compiled model has a process of its own (`--method compiled`); the others are chosen per request.
"""

import argparse
import time
from typing import TYPE_CHECKING, Any

import protocol
import transformers_compiled

if TYPE_CHECKING:
    from torch import Tensor

Model = Any  # of transformers
DRAFTING = ("lookup", "assisted")


def main() -> None:
    """Load the model and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--attention", default="sdpa")
    options.add_argument("--lookup-tokens", type=int, default=10)
    options.add_argument("--draft-model", help="folder of the draft model")
    options.add_argument("--assistant-tokens", type=int, help="max.; default of transformers")
    options.add_argument("--method", choices=("compiled",), help="compile the decoding steps")
    options.add_argument("--compile-mode", default="reduce-overhead", help="of torch.compile")
    chosen = options.parse_args()
    channel = protocol.private_stdout()
    if chosen.method:
        transformers_compiled.require_compiler(chosen.device)
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(chosen.threads)

    def load(folder: str) -> Model:
        kind = {"dtype": getattr(torch, chosen.dtype), "attn_implementation": chosen.attention}
        return AutoModelForCausalLM.from_pretrained(folder, **kind).to(chosen.device).eval()

    model = load(chosen.model)
    own = "compile_mode" if chosen.method else "lookup_tokens"
    names = ("dtype", "device", "threads", "attention", own)
    settings = {name: getattr(chosen, name) for name in names}
    chosen.assistant = load(chosen.draft_model) if chosen.draft_model else None
    if chosen.assistant is not None:
        set_assistant(chosen.assistant, chosen.assistant_tokens, settings)
    compiled = transformers_compiled.Compiled(model, chosen.compile_mode) if chosen.method else None
    ready = protocol.about(("transformers", "torch"), settings)
    protocol.serve(lambda request: answer(model, request, chosen, compiled), channel, ready)


def set_assistant(assistant: Model, tokens: int | None, settings: dict) -> None:
    """Set how many tokens the draft model proposes; adds its options to `settings`."""
    config = assistant.generation_config
    config.num_assistant_tokens = tokens or config.num_assistant_tokens
    for name in ("num_assistant_tokens", "num_assistant_tokens_schedule"):
        settings[name] = getattr(config, name, None)
    settings["assistant_threshold"] = getattr(config, "assistant_confidence_threshold", None)


class Clock:
    """A streamer that records when tokens arrive; `generate` passes it the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.first_tokens = 0

    def put(self, value: "Tensor") -> None:
        """Called for the prompt, then after every step with its new tokens."""
        self.times.append(time.perf_counter())
        if len(self.times) == 2:
            self.first_tokens = value.numel()

    def end(self) -> None:
        """Nothing to flush."""


def answer(
    model: Model,
    request: dict,
    chosen: argparse.Namespace,
    compiled: transformers_compiled.Compiled | None = None,
) -> dict:
    """Generate; prompts of different lengths are padded on the left."""
    import torch

    prompts, ends = request["prompts"], request["end_tokens"]
    width = max(map(len, prompts))
    padded = [[ends[0] if ends else 0] * (width - len(p)) + p for p in prompts]
    mask = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
    inputs = {
        "inputs": torch.tensor(padded, device=model.device),
        "attention_mask": torch.tensor(mask, device=model.device),
    }
    wanted = generation_options(request, chosen)
    with torch.inference_mode():
        if compiled:
            wanted |= compiled.options(inputs, wanted)
        torch.manual_seed(request["seeds"][0])
        clock, start = Clock(), time.perf_counter()
        output = model.generate(**inputs, streamer=clock, **wanted)
    rows = output[:, width:].tolist()
    total_seconds = time.perf_counter() - start
    token_ids = [until_end(row, ends) for row in rows]
    return {
        "token_ids": token_ids,
        "finish_reasons": [protocol.finish_reason(ids, ends) for ids in token_ids],
        "prefill_seconds": clock.times[1] - start,
        "total_seconds": total_seconds,
        "first_tokens": clock.first_tokens,
        "steps": steps(token_ids, clock, plain=request["method"] not in DRAFTING),
    }


def generation_options(request: dict, chosen: argparse.Namespace) -> dict:
    """Only the options of the request; above temperature 0 plain sampling."""
    ends = request["end_tokens"]
    options = {
        "max_new_tokens": request["max_tokens"],
        "eos_token_id": ends or None,
        "pad_token_id": ends[0] if ends else 0,
        "repetition_penalty": 1.0,
        "do_sample": request["temperature"] > 0,
    }
    if request["temperature"] > 0:
        options |= {"temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
    if request["method"] == "lookup":
        options["prompt_lookup_num_tokens"] = chosen.lookup_tokens
    if request["method"] == "assisted":
        options["assistant_model"] = chosen.assistant
    return options


def until_end(row: list[int], ends: list[int]) -> list[int]:
    """A row without the padding after its end token."""
    places = [place for place, token in enumerate(row) if token in ends]
    return row[: places[0] + 1] if places else row


def steps(token_ids: list[list[int]], clock: Clock, *, plain: bool) -> int:
    """Steps after the first: one per token, or, with a drafter, one per call of the streamer."""
    return sum(len(ids) - 1 for ids in token_ids) if plain else max(len(clock.times) - 2, 0)


if __name__ == "__main__":
    main()
