"""llama.cpp worker through llama-cpp-python. One process per method, as the drafter is fixed.

`--model` is a GGUF file and decides the precision; `--dtype` is not used. With `pld` the library
keeps the logits of every prompt token, so its prefill is slower than that of `plain`.
"""

import argparse
from collections.abc import Iterator
from itertools import islice

import protocol


def main() -> None:
    """Load the GGUF file and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--method", choices=("plain", "pld"), default="plain")
    options.add_argument("--num-pred-tokens", type=int, default=2)
    options.add_argument("--max-ngram-size", type=int, default=2)
    options.add_argument("--flash-attention", action="store_true")
    chosen = options.parse_args()
    channel = protocol.private_stdout()
    llm = load(chosen)
    about = protocol.versions("llama_cpp_python") | {"settings": settings(llm, chosen)}
    protocol.serve(lambda request: protocol.timed(tokens(llm, request)), channel, about)


def load(chosen: argparse.Namespace) -> object:
    """The model, with the drafter that the library's documentation gives for prompt lookup."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter = None
    if chosen.method == "pld":
        drafter = LlamaPromptLookupDecoding(
            max_ngram_size=chosen.max_ngram_size, num_pred_tokens=chosen.num_pred_tokens
        )
    return Llama(
        model_path=chosen.model,
        n_ctx=chosen.max_model_len,
        n_threads=chosen.threads,
        n_threads_batch=chosen.threads,
        flash_attn=chosen.flash_attention,
        draft_model=drafter,
        logits_all=drafter is not None,  # else prompts over one batch fail (0.3.36)
        verbose=False,
    )


def settings(llm: object, chosen: argparse.Namespace) -> dict:
    """What a reader needs to repeat the run; 32 bits are file type 0, 16 bits 1, Q4_1 is 3."""
    found = {
        "gguf_file_type": llm.metadata.get("general.file_type"),
        "threads": chosen.threads,
        "flash_attention": chosen.flash_attention,
    }
    if chosen.method == "pld":
        found |= {name: getattr(chosen, name) for name in ("num_pred_tokens", "max_ngram_size")}
    return found


def tokens(llm: object, request: dict) -> Iterator[list[int]]:
    """New tokens one by one, up to the end token.

    Forgetting the last request first keeps the library from reusing a common prompt prefix.
    """
    llm.reset()
    generated = llm.generate(request["prompt_token_ids"], temp=0.0, repeat_penalty=1.0)
    for token in islice(generated, request["max_tokens"]):
        yield [token]
        if token == llm.token_eos():
            return


if __name__ == "__main__":
    main()
