"""A worker without a model: its outputs are made of the prompt.

--die-at N ends it at its Nth request, --fail-at N refuses that one, --broken never gets ready.
"""

import argparse
import json
import os
import sys

options = argparse.ArgumentParser()
options.add_argument("--die-at", type=int, default=0)
options.add_argument("--fail-at", type=int, default=0)
options.add_argument("--broken", action="store_true")
chosen, given = options.parse_known_args()
engine = os.path.basename(sys.argv[0]).removesuffix("_worker.py")
if chosen.broken:
    sys.exit("no such engine here")


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


send({"ready": {"versions": {engine: "1.0"}, "settings": {"dtype": "bf16"}}})
for number, line in enumerate(sys.stdin, 1):
    request = json.loads(line)
    with open(os.environ["FAKE_WORKER_REQUESTS"], "a") as requests:
        requests.write(json.dumps({"engine": engine, "given": given, **request}) + "\n")
    if number == chosen.die_at:
        sys.stderr.write("out of memory\n")
        sys.exit(3)
    if number == chosen.fail_at:
        answer = {"error": "ValueError: too\nlong"}
    elif "gold" in request:
        answer = {"log_likelihoods": [-2.0 * len(gold) for gold in request["gold"]]}
    else:
        tokens = [prompt[:4] + [request["seeds"][0]] for prompt in request["prompts"]]
        answer = {
            "token_ids": tokens,
            "finish_reasons": ["length"] * len(tokens),
            "prefill_seconds": 0.5,
            "total_seconds": 1.5,
            "first_tokens": len(tokens),
            "steps": 2 * len(tokens),
        }
    send({"id": request["id"], **answer})
