"""Put a trained head into the package: its files, and a card that also tells of data and stages.

    python -m benchmarks.heads.ship HEAD [--before FIRST SECOND ...] [--measured "..."]

HEAD is what `graft train` wrote (config.json, model.safetensors, README.md) with the run's
log.jsonl beside them, --before the heads it was begun with, the first of all first. The folder
graft/heads/TARGET-KIND is replaced; nothing else need be changed to ship another head.
"""

import argparse
import json
import shutil
from pathlib import Path

from graft.home import atomic_folder
from graft.models.checkpoints.pretrained import KNOWN
from graft.models.heads.files import CARD, CONFIG, WEIGHTS, read_head
from graft.models.heads.installed import IN_PACKAGE
from graft.train.card import PAPERS, architecture
from graft.train.journal import LOG, read_notes

HARDWARE = "one NVIDIA H200"  # of heads whose config does not say it
DATA = """Answers in conversations, questions are read but not learned from:

- ShareGPT V3, a part of it: 17,671 conversations.
- Answers that the target itself wrote to the first questions of these, 8,000 at temperature 0 and
  3,584 at temperature 1 (4,608 and 3,584 in the first stage).
- 6,000 answers of the target (2,048 in the first stage) to questions about documents: Wikipedia
  pages (enwik8), the meetings of QMSum's validation set, essays, documents of LongBench v2
  (benchmarks/heads/questions.py).

The last stages saw answers of the target alone.

Left out is every text that shares 13 words in a row with Spec-Bench, QMSum's test set, Multi-News,
L-Eval, HumanEval, SQuAD, Spider, MedQA, GSM8K, MT-Bench-101 or EAGLE's own test sets."""
LIMITS = """- For the very weights of the fingerprint above and no others: a fine-tuned or
  differently quantised SmolLM2 needs a head of its own (`graft train`).
- English, mostly. Only the {draft_vocabulary} ids that were most frequent in the data are ever
  drafted: other scripts and rare words are left to the target.
- It makes decoding faster and never changes the output: every draft is verified. On two CPU cores a
  draft takes a good part of a step, so `auto` uses the head only where it saves time.
- It was trained on rows of {length} tokens; its acceptance in much longer texts was not
  measured here."""
USE = """```
graft run "When can the contract be ended?" --doc contract.pdf          # auto: where it saves time
graft run "When can the contract be ended?" --doc contract.pdf --draft {kind}   # always
```

It is installed with Graft and found by its target's fingerprint; `--head none` leaves it out.
The files follow `speculators`' layout."""


def main() -> None:
    """Check the head, write its folder."""
    options = _options()
    head = read_head(options.head)
    config = head.config
    folder = options.out / f"{config.target}-{config.kind}"
    stages = [*options.before, options.head]
    stages_text = "\n\n".join(_stage(each) for each in stages)
    known = KNOWN[config.target]
    limits = LIMITS.format(
        draft_vocabulary=f"{config.draft_vocabulary:,}",
        length=" and ".join(f"{each:,}" for each in sorted({_facts(s)["length"] for s in stages})),
    )
    card = f"""---
license: apache-2.0
base_model: {known.hub_id}
library_name: graftlm
tags: [speculative-decoding, draft-head, {config.kind}]
language: en
---
# {folder.name}: a draft head for {config.target}

Guesses the next tokens of SmolLM2-135M-Instruct, by {PAPERS[config.kind]}.

{USE.format(kind=config.kind)}

## Target

{config.target} ({known.hub_id}, {config.architecture}), fingerprint
{config.fingerprint}.

## Architecture

{architecture(head)}

## Data

{DATA}

## Training

{stages_text}

## Measured

{_held_out(options.head)}
{options.measured}

## Limits

{limits}

## Licence

Apache-2.0, like the target's.
"""
    with atomic_folder(folder) as temporary:
        for name in (CONFIG, WEIGHTS):
            shutil.copyfile(options.head / name, temporary / name)
        (temporary / CARD).write_text(card, encoding="utf-8")
    print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")


def _stage(folder: Path) -> str:
    """What the trainer's own card says of a run behind the files' names, and what it ran on."""
    card = (folder / CARD).read_text(encoding="utf-8")
    stages_text = card[card.index("Trained by") :].partition(":\n")[2].partition("\n\n")[0]
    return f"`graft train`: {stages_text} Hardware: {_facts(folder).get('hardware', HARDWARE)}."


def _facts(folder: Path) -> dict:
    return json.loads((folder / CONFIG).read_text(encoding="utf-8"))["graft"]["training"]


def _held_out(folder: Path) -> str:
    """The last measurement of the run."""
    last = [note for note in read_notes(folder / LOG) if "tokens_per_step" in note][-1]
    rates = ", ".join(f"{rate:.2f}" for rate in last["accepted"])
    return (
        f"Held out: {last['tokens_per_step']:.2f} tokens per step, a chain of five greedy drafts "
        f"checked against\nthe target's likeliest token. Right up to the first, second, ... "
        f"draft: {rates}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("head", type=Path, help="the folder that graft train wrote")
    parser.add_argument("--before", type=Path, nargs="+", default=[], help="what it was begun with")
    parser.add_argument("--measured", default="", help="more for the card: figures of graft bench")
    parser.add_argument("--out", type=Path, default=IN_PACKAGE)
    return parser.parse_args()


if __name__ == "__main__":
    main()
