"""One of the processes that share a model, started by torchrun in test_hf_split.py.

It loads the model of a folder, split over all processes, and writes what it generates, and what it
is refused, as JSON into the folder `results`, one file each.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig
from transformers.generation.streamers import BaseStreamer

from graft.errors import GraftError
from graft.integrations import hf

SEED = 5
PATIENCE = timedelta(seconds=60)  # with each other: whoever is left waiting fails


class Heard(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        """The prompt, then token after token."""
        self.tokens += value.flatten().tolist()

    def end(self):
        """No more."""
        self.ended = True


def load(folder):
    """The model, this process's share of it."""
    plan = DistributedConfig(tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(folder, distributed_config=plan)


def told(model, **options):
    """What comes of a call, and its statistics, or the refusal."""
    try:
        output = model.generate(custom_generate=hf.generate, **options)
    except GraftError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    stats = hf.last_stats(model)
    return {
        "tokens": output.tolist(),
        "steps": [each.per_step_drafted for each in stats],
        "drafted": sum(each.num_draft_tokens for each in stats),
        "accepted": sum(each.num_accepted_draft_tokens for each in stats),
    }


def streamed(model, rank, **options):
    """Only the first process shows what is written."""
    heard = Heard() if rank == 0 else None
    found = told(model, streamer=heard, **options)
    return found | ({"heard": heard.tokens, "ended": heard.ended} if heard else {})


def main(folder, results):
    """Every call that the test asks about."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    rank = torch.distributed.get_rank()
    asked = json.loads((folder / "asked.json").read_text())
    batch, one, long = (
        {name: torch.tensor(rows) for name, rows in asked[shape].items()}
        for shape in ("ragged", "one", "long")
    )
    different = {name: rows[:, rank:] for name, rows in one.items()}
    model = load(folder / "model")
    answers = {"share": len(model.lm_head.weight.to_local())}
    answers["greedy"] = told(model, **batch, max_new_tokens=40, draft="copy")
    torch.manual_seed(SEED + rank)  # the first process's counts
    answers["sampled"] = told(model, **batch, max_new_tokens=40, do_sample=True, draft="copy")
    answers["auto"] = told(model, **one, max_new_tokens=40)
    answers["by itself"] = told(model, **long, max_new_tokens=20, draft="magicdec-snapkv")
    answers["streamed"] = streamed(model, rank, **one, max_new_tokens=20, draft="copy")
    answers["different prompts"] = told(model, **different, max_new_tokens=4)
    answers["max_time"] = told(model, **one, max_new_tokens=4, max_time=60.0)
    answers["still"] = told(model, **one, max_new_tokens=20, draft="copy")
    answers["one head"] = told(load(folder / "one head"), **one, max_new_tokens=4)
    (results / f"{rank}.json").write_text(json.dumps(answers))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
