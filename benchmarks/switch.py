"""Nodes per step of `auto` while a text switches from copying to free prose and back.

The text is forced: two stretches of a document that stands in the prompt, and between them a text
that does not. Costs come from the checked-in table, so the counts are the same everywhere.

    python benchmarks/switch.py --document examples/service_agreement.md --other LICENSE
"""

import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

from graft.assemble import make_drafter
from graft.draft.drafter import Budget, DraftContext
from graft.models.checkpoints.pretrained import DEFAULT_MODEL, locate
from graft.models.language_model import TargetStep
from graft.models.step_costs import REFERENCE, StepCosts

BARS = " ▁▂▃▄▅▆▇█"


def main() -> None:
    """Print three rows of bars, one per stretch."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--document", type=Path, required=True)
    options.add_argument("--other", type=Path, required=True)
    options.add_argument("--model", default=DEFAULT_MODEL)
    options.add_argument("--tokens", type=int, default=80)
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    encode = AutoTokenizer.from_pretrained(locate(chosen.model).folder).encode
    document, other = encode(chosen.document.read_text()), encode(chosen.other.read_text())
    count = chosen.tokens
    stretches = {
        "copying": document[200 : 200 + count],
        "free": other[400 : 400 + count],
        "copying again": document[600 : 600 + count],
    }
    context = DraftContext(0, document, [(0, len(document))], tokens=stretches["copying"][:1])
    drafter, costs = make_drafter("auto"), StepCosts.read(REFERENCE)
    drafter.start(context)
    stretches["copying"] = stretches["copying"][1:]
    for name, tokens in stretches.items():
        nodes = nodes_per_step(drafter, context, tokens, costs)
        most = max(*nodes, 8)
        print(f"{name:14}{''.join(BARS[8 * n // most] for n in nodes)}  {nodes}")
        if chosen.out:
            with chosen.out.open("a") as file:
                file.write(json.dumps({"stretch": name, "nodes": nodes}) + "\n")


def nodes_per_step(drafter, context, coming, costs) -> list[int]:  # noqa: ANN001
    """Let the target write `coming`, taking what was guessed right."""
    counts = []
    while coming:
        seconds = costs.at(len(context.prompt) + len(context.tokens) - 1)
        (tree,) = drafter.propose([context], Budget(63, seconds[1:]))
        children, node, taken = tree.children, 0, 0
        while taken < len(coming) - 1 and coming[taken] in children[node]:
            node, taken = children[node][coming[taken]], taken + 1
        context.tokens.extend(coming[: taken + 1])
        drafter.observe([TargetStep(context.sequence, coming[: taken + 1])])
        coming = coming[taken + 1 :]
        counts.append(len(tree) - 1)
    return counts


if __name__ == "__main__":
    main()
