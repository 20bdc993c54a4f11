"""How far reuse of passages moves a model: KL divergence to exact reading, on the same prefixes.

    python benchmarks/rag_divergence.py --data SETS --model qwen2.5-coder-0.5b --limit 10

Every question is answered with every reuse, guided as usual. Before each call of the model its
prompt is read twice, all of it and with what is reused, and both go on with the tokens that plain
decoding would write: the mean divergence of their distributions, over tokens and all calls, those
with nothing to reuse among them.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import graft
from graft.bench.rag.sets import all_questions, find_sets
from graft.bench.task import Prompt, select
from graft.decode.engine import Engine
from graft.decode.request import Request
from graft.errors import GraftError
from graft.rag.corpus import Bm25Corpus
from graft.rag.divergence import continuation_logits, mean_divergence
from graft.rag.parts import Part
from graft.rag.reuse import as_reuse
from graft.rag.round_reuse import Handed, RoundReuse, reuse_for
from graft.rag.session import Session
from graft.sampling import SamplingParams

MODES = "exact,blend+0.5,blend+0.3,blend+0.15,cics,keep"


@dataclass(slots=True)
class Compared:
    """A reuse that also tells how far each of its prompts is from exact reading."""

    inner: RoundReuse
    engine: Engine
    tokens: int
    found: list[dict] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Of what is compared."""
        return self.inner.name

    @property
    def approximate(self) -> bool:
        """Of what is compared."""
        return self.inner.approximate

    @property
    def keeps_head(self) -> bool:
        """Of what is compared."""
        return self.inner.keeps_head

    def hand(self, parts: Sequence[Part], question: str) -> Handed:
        """What the inner reuse hands over; measured first, by reading it on the side."""
        handed = self.inner.hand(parts, question)
        if not question:
            return handed
        plainly = SamplingParams(max_tokens=self.tokens, ignore_eos=True)
        (answer,) = self.engine.generate(
            [Request(handed.tokens, plainly, draft="plain", most_cached=0)]
        )
        rows = handed.options.get("rows")
        exact, reused = (
            continuation_logits(self.engine, handed.tokens, each, answer.token_ids)
            for each in (None, rows)
        )
        share = sum(handed.known or ()) / len(handed.tokens)
        self.found.append({"divergence": mean_divergence(exact, reused), "known_exactly": share})
        return self.inner.hand(parts, question)

    def end(self, question: str) -> None:
        """A question has been answered."""
        self.inner.end(question)


def main() -> int:
    """Measure and print a table; the exit code."""
    asked = _options().parse_args()
    try:
        rows = _measure(asked)
    except GraftError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if asked.out:
        asked.out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print("| reuse | calls | mean KL (nats) | largest |\n|---|--:|--:|--:|")
    for mode in asked.reuse.split(","):
        mine = [each["divergence"] for each in rows if each["reuse"] == mode]
        if mine:
            print(f"| {mode} | {len(mine)} | {sum(mine) / len(mine):.2g} | {max(mine):.2g} |")
    return 0


def _measure(asked: argparse.Namespace) -> list[dict]:
    engine = graft.load(
        asked.model,
        dtype=asked.dtype,
        device=asked.device,
        max_batch=1,
        kv_cache=asked.kv_cache,
    )
    sets = find_sets(asked.data, tuple(asked.sets.split(",")))
    by_key = {(each.name, one.number): (each, one) for each, one in all_questions(sets)}
    prompts = [Prompt(number, name, one.text) for (name, number), (_, one) in by_key.items()]
    corpora = {each.name: Bm25Corpus(each.passages) for each in sets}
    rows = []
    for prompt in select(prompts, limit=asked.limit, split="report"):
        for mode in asked.reuse.split(","):
            compared = Compared(reuse_for(engine, as_reuse(mode)), engine, asked.tokens)
            session = Session(
                engine,
                corpora[prompt.category],
                policy=asked.policy,
                reuse=compared,
                draft="plain",
                guided=asked.guided,
                family=prompt.category,
            )
            question = by_key[prompt.category, prompt.number][1]
            session.ask(question.text, SamplingParams(max_tokens=asked.max_tokens))
            about = {"set": prompt.category, "question": prompt.number, "reuse": mode}
            rows += [{**about, "call": place, **each} for place, each in enumerate(compared.found)]
            sys.stderr.write(f"{prompt.category} {prompt.number} {mode}: {len(compared.found)}\n")
    return rows


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, required=True, help="the sets' folder")
    options.add_argument("--sets", default="2wiki,hotpotqa")
    options.add_argument("--model", default="smollm2-135m")
    options.add_argument("--dtype", default="fp32")
    options.add_argument("--device", default="auto")
    options.add_argument("--kv-cache", type=int, help="bytes; a GPU's free memory if not given")
    options.add_argument("--policy", default="dragin")
    options.add_argument("--reuse", default=MODES)
    options.add_argument("--guided", action="store_true")
    options.add_argument("--limit", type=int, default=10, help="questions of a set")
    options.add_argument("--tokens", type=int, default=24, help="compared after each prompt")
    options.add_argument("--max-tokens", type=int, default=100)
    options.add_argument("--out", type=Path)
    return options


if __name__ == "__main__":
    sys.exit(main())
