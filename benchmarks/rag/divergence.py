"""How far reuse of passages moves a model: KL divergence to exact reading, on the same prefixes.

    python -m benchmarks.rag.divergence --data SETS --model qwen2.5-coder-0.5b --limit 10

Every question is answered with every reuse, guided as usual. Before each call of the model its
prompt is read twice, all of it and with what is reused, and both go on with the tokens that plain
decoding would write: the mean divergence of their distributions, over tokens and all calls, those
with nothing to reuse among them.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import graft
from benchmarks.rag.logits import continuation_logits, mean_divergence
from benchmarks.rag.sets import choose, find_sets
from benchmarks.rows import rows_file
from graft.decode.engine import Engine
from graft.decode.prepared_request import PreparedRequest
from graft.decode.request import Request
from graft.rag.corpus import Bm25Corpus
from graft.rag.document_cache import DocumentCache, Prepared
from graft.rag.parts import Part
from graft.rag.reuse import as_reuse
from graft.rag.session import Session
from graft.sampling import SamplingParams

MODES = "exact,blend+0.5,blend+0.3,blend+0.15,cics,keep"


class Compared:
    """A cache that also measures how far each of its prompts is from exact prefill."""

    def __init__(self, inner: DocumentCache, engine: Engine, tokens: int) -> None:
        self.inner, self.engine, self.tokens = inner, engine, tokens
        self.reuse = inner.reuse
        self.found: list[dict] = []

    def prepare(self, parts: Sequence[Part], question: str) -> Prepared:
        """The prompt of the inner cache, measured first."""
        prompt = self.inner.prepare(parts, question)
        if not question:
            return prompt
        plainly = SamplingParams(max_tokens=self.tokens, ignore_eos=True)
        (answer,) = self.engine.generate(
            [PreparedRequest(Request(prompt.tokens, plainly, draft="plain"), max_cached=0)]
        )
        exact, reused = (
            continuation_logits(self.engine, prompt.tokens, each, answer.token_ids)
            for each in (None, prompt.rows)
        )
        share = sum(part.exact for part in prompt.parts) / len(prompt.tokens)
        self.found.append({"divergence": mean_divergence(exact, reused), "known_exactly": share})
        return self.inner.prepare(parts, question)

    def end(self, question: str) -> None:
        """A question has been answered."""
        self.inner.end(question)


def main() -> None:
    """Measure and print a table."""
    options = _options().parse_args()
    modes = options.reuse.split(",")
    with rows_file("rag_divergence", options) as file:
        rows = file.results.rows
        done = {(row["set"], row["question"], row["variant"]) for row in rows}
        for row in _rows(options, modes, done):
            file.row(row)
    print("| reuse | calls | mean KL (nats) | largest |\n|---|--:|--:|--:|")
    for mode in modes:
        mine = [each["divergence"] for each in rows if each["variant"] == mode]
        if mine:
            print(f"| {mode} | {len(mine)} | {sum(mine) / len(mine):.2g} | {max(mine):.2g} |")


def _rows(
    options: argparse.Namespace, modes: Sequence[str], done: set[tuple[str, int, str]]
) -> Iterator[dict]:
    """A line for every call, question by question, of those that are not done."""
    engine = graft.load(
        options.model,
        dtype=options.dtype,
        device=options.device,
        max_batch=1,
        kv_cache=options.kv_cache,
    )
    sets = find_sets(options.data, tuple(options.sets.split(",")))
    corpora = {each.name: Bm25Corpus(each.passages) for each in sets}
    for chosen, question in choose(sets, limit=options.limit, split="report"):
        for mode in modes:
            if (chosen.name, question.number, mode) in done:
                continue
            cache = DocumentCache(engine, as_reuse(mode))
            compared = Compared(cache, engine, options.tokens)
            session = Session(
                engine,
                corpora[chosen.name],
                policy=options.policy,
                reuse=compared,
                draft="plain",
                guided=options.guided,
                family=chosen.name,
            )
            session.ask(question.text, SamplingParams(max_tokens=options.max_tokens))
            about = {"set": chosen.name, "question": question.number, "variant": mode}
            for place, each in enumerate(compared.found):
                yield {**about, "call": place, **each}
            sys.stderr.write(f"{chosen.name} {question.number} {mode}: {len(compared.found)}\n")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the sets' folder")
    parser.add_argument("--sets", default="2wiki,hotpotqa")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-cache", type=int, help="bytes; a GPU's free memory if not given")
    parser.add_argument("--policy", default="dragin")
    parser.add_argument("--reuse", default=MODES)
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--limit", type=int, default=10, help="questions of a set")
    parser.add_argument("--tokens", type=int, default=24, help="compared after each prompt")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/rag_divergence.jsonl"))
    return parser


if __name__ == "__main__":
    main()
