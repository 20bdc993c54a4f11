"""transformers worker: `generate`, greedy, plain or with prompt lookup (`pld`)."""

import time

import protocol

PLD_TOKENS = 10


def main() -> None:
    """Load the model and answer until stdin closes."""
    options = protocol.parser(__doc__)
    options.add_argument("--attention", default="sdpa")
    chosen = options.parse_args()
    channel = protocol.private_stdout()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(chosen.threads)
    model = AutoModelForCausalLM.from_pretrained(
        chosen.model, dtype=getattr(torch, chosen.dtype), attn_implementation=chosen.attention
    ).eval()
    settings = {name: getattr(chosen, name) for name in ("dtype", "threads", "attention")}
    about = protocol.versions("transformers", "torch") | {"settings": settings}
    protocol.serve(lambda request: answer(model, request), channel, about)


class FirstToken:
    """A streamer that notes when new tokens first come; `generate` hands it the prompt before."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen_at = 0.0

    def put(self, value: object) -> None:
        """Called for the prompt, then after every step."""
        self.calls += 1
        if self.calls == 2:
            self.seen_at = time.perf_counter()

    def end(self) -> None:
        """Nothing to flush."""


def answer(model: object, request: dict) -> dict:
    """Generate greedily; the model's generation config says where to stop."""
    import torch

    lookup = {"prompt_lookup_num_tokens": PLD_TOKENS} if request["method"] == "pld" else {}
    prompt = torch.tensor([request["prompt_token_ids"]])
    first = FirstToken()
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=request["max_tokens"],
            do_sample=False,
            streamer=first,
            **lookup,
        )
    total_seconds = time.perf_counter() - start
    token_ids = output[0, prompt.shape[1] :].tolist()
    return {
        "token_ids": token_ids,
        "prefill_seconds": first.seen_at - start,
        "total_seconds": total_seconds,
        "tokens": len(token_ids),
    }


if __name__ == "__main__":
    main()
