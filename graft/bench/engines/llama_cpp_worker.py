"""llama.cpp worker through llama-cpp-python. One process per method, as the drafter is fixed.

`--model` is a GGUF file; one whose weights have another precision than `--dtype` is refused, unless
that is `gguf`: the file as it is. With `lookup` the library keeps the logits of every prompt token,
so its prefill is slower.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import protocol

Model = Any  # llama_cpp.Llama; this environment may not have it
FILE_TYPES = {"float32": "0", "float16": "1", "bfloat16": "32"}  # general.file_type of a GGUF


def main() -> None:
    """Load the GGUF file and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--method", choices=("plain", "lookup"), default="plain")
    options.add_argument("--num-pred-tokens", type=int, default=2)
    options.add_argument("--max-ngram-size", type=int, default=2)
    options.add_argument("--flash-attention", action="store_true")
    options.add_argument(
        "--any-precision", action="store_true", help="accept any precision of the GGUF"
    )
    chosen = options.parse_args()
    channel = protocol.private_stdout()
    llm = load(chosen)
    kind = llm.metadata.get("general.file_type")
    taken = chosen.any_precision or chosen.dtype == "gguf"
    if kind != FILE_TYPES.get(chosen.dtype) and not taken:
        raise SystemExit(f"the GGUF's type is {kind}, not {chosen.dtype}; convert it first")
    ready = protocol.about(("llama_cpp_python",), settings(llm, chosen))
    protocol.serve(lambda request: answer(llm, request), channel, ready)


def load(chosen: argparse.Namespace) -> Model:
    """The model, with the drafter that the library's documentation gives for prompt lookup."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    class Counting(Llama):
        """Counts its forward passes; a prompt is one."""

        passes = 0

        def eval(self, tokens: list[int]) -> None:
            self.passes += 1
            super().eval(tokens)

    drafter = None
    if chosen.method == "lookup":
        drafter = LlamaPromptLookupDecoding(
            max_ngram_size=chosen.max_ngram_size, num_pred_tokens=chosen.num_pred_tokens
        )
    return Counting(
        model_path=chosen.model,
        n_ctx=chosen.max_model_len,
        n_threads=chosen.threads,
        n_threads_batch=chosen.threads,
        n_gpu_layers=-1 if chosen.device.startswith("cuda") else 0,
        verbose=False,
        flash_attn=chosen.flash_attention,
        draft_model=drafter,
        logits_all=drafter is not None,  # else prompts over one batch fail (0.3.36)
    )


def settings(llm: Model, chosen: argparse.Namespace) -> dict:
    """What is needed to repeat the run."""
    found = {
        "gguf_file_type": llm.metadata.get("general.file_type"),
        "threads": chosen.threads,
        "flash_attention": chosen.flash_attention,
        "max_model_len": chosen.max_model_len,
    }
    if chosen.method == "lookup":
        found |= {name: getattr(chosen, name) for name in ("num_pred_tokens", "max_ngram_size")}
    return found


def answer(llm: Model, request: dict) -> dict:
    """One prompt, without reusing a common prefix of the last one."""
    llm.reset()
    llm.passes = 0
    llm.set_seed(request["seeds"][0] % (1 << 32))
    found = protocol.timed(1, tokens(llm, request), request["end_tokens"])
    return {**found, "steps": llm.passes - 1}


def tokens(llm: Model, request: dict) -> Iterator[dict[int, list[int]]]:
    """New tokens one by one, up to an end token; above temperature 0 plain sampling."""
    generated = llm.generate(
        request["prompts"][0],
        temp=request["temperature"],
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repeat_penalty=1.0,
    )
    for token in islice(generated, request["max_tokens"]):
        yield {0: [token]}
        if token in request["end_tokens"]:
            return


if __name__ == "__main__":
    main()
