"""vLLM's side of the proposer on the host: a model runner with a batch of requests."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np

WIDTH = 256
VOCABULARY = 1000


def config(tokens=8, max_model_len=WIDTH, rank=0, ranks=1, **additional):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, tokenizer="none", get_vocab_size=lambda: VOCABULARY
        ),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=ranks),
        additional_config=additional,
    )


def install(monkeypatch, version="0.32.0"):
    """vLLM's modules with what the proposer uses of them."""

    class GPUModelRunner:
        """As in vLLM, the proposer gets rows without names."""

        def __init__(self, drafter):
            self.drafter, self.requests = drafter, {}
            self.input_batch = SimpleNamespace(req_ids=[])

        def propose_draft_token_ids(self, sampled):
            batch = self.input_batch
            return self.drafter.propose(
                sampled, batch.num_tokens_no_spec, batch.token_ids_cpu, slot_mappings=None
            )

    contents = {
        "vllm": {"__version__": version}, "vllm.v1": {}, "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
    }  # fmt: skip
    for name, names in contents.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return GPUModelRunner


class Engine:
    """Requests by name, whose texts grow by what is sampled."""

    def __init__(self, runner_class, drafter):
        self.runner = runner_class(drafter)
        self.texts = {}

    def start(self, name, prompt, fields=None):
        extra = None if fields is None else {"graft": fields}
        self.texts[name] = list(prompt)
        self.runner.requests[name] = SimpleNamespace(
            num_prompt_tokens=len(self.texts[name]),
            sampling_params=SimpleNamespace(extra_args=extra),
        )

    def end(self, *names):
        for name in names:
            del self.texts[name], self.runner.requests[name]

    def step(self, **sampled):
        """The drafts of the requests that are named, in this order of rows."""
        ids = np.zeros((len(sampled) + 2, WIDTH), dtype=np.int32)
        lengths = np.zeros(len(sampled) + 2, dtype=np.int32)
        for row, (name, new) in enumerate(sampled.items()):
            self.texts[name] += new
            lengths[row] = len(self.texts[name])
            ids[row, : lengths[row]] = self.texts[name]
        batch = self.runner.input_batch
        batch.req_ids, batch.num_tokens_no_spec, batch.token_ids_cpu = [*sampled], lengths, ids
        drafts = self.runner.propose_draft_token_ids([list(new) for new in sampled.values()])
        return dict(zip(sampled, drafts, strict=True))
