"""Likelihood of gold answers after a prompt, where small models generate poor answers.

It is measured once for every prompt and context, and once more where retrieval shortens the prompt;
it does not depend on the drafter, so the first variant with that prompt is used.
"""

from dataclasses import dataclass, replace

from benchmarks.decode.encode import Workload
from benchmarks.decode.graft_variants import shortens
from benchmarks.decode.settings import DecodeSettings
from benchmarks.suites.task import Gold
from graft.bench.measure import Loop, Measurement
from graft.bench.result_file import LIKELIHOOD, ResultFile
from graft.bench.worker import RequestError, WorkerError

# How answers of these kinds are phrased
PHRASES = {
    "choice": "The correct answer is ({})",
    "letters": "Answer: {}",
    "boxed": "\\boxed{{{}}}",
}
Key = tuple[int, int, bool]  # prompt, context, whether it is shortened


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """The likelihoods of a run."""

    settings: DecodeSettings
    workload: Workload
    file: ResultFile

    def left(self, measurements: list[Measurement]) -> dict[Key, Measurement]:
        """One measurement per likelihood that the file does not have."""
        if self.settings.quality != LIKELIHOOD:
            return {}
        names = ("prompt", "context", "shortened")
        lines = self.file.results.records[LIKELIHOOD]
        known = {tuple(line[name] for name in names) for line in lines}
        found: dict[Key, Measurement] = {}
        for each in measurements:
            if each.variant.name in self.settings.engines:
                continue
            for prompt in each.prompts:
                key = prompt.id, each.context, shortens(each.variant.method)
                if self.workload.by_number[prompt.id].gold and key not in known:
                    found.setdefault(key, replace(each, prompts=(prompt,), temperature=0.0))
        return found

    def measure(self, loop: Loop, measurements: list[Measurement]) -> None:
        """Write what is left; a failure is a message."""
        for (prompt, context, shortened), each in self.left(measurements).items():
            tokens = self.tokens(self.workload.by_number[prompt].gold)
            loop.progress.show(f"{each.variant.name}: likelihood of gold, prompt {prompt}")
            try:
                answer = loop.started(each.variant).ask(loop.request(each) | {"gold": [tokens]})
            except (WorkerError, RequestError) as error:
                loop.progress.say(f"{each.variant.name}, gold of prompt {prompt}: {error}")
                continue
            line = {"prompt": prompt, "context": context, "shortened": shortened}
            line |= {"tokens": len(tokens), "log_likelihood": answer["log_likelihoods"][0]}
            self.file.record(LIKELIHOOD, line)

    def tokens(self, gold: Gold) -> list[int]:
        """The first reference, at most as long as an output."""
        text = PHRASES.get(gold.kind, "{}").format(gold.references[0])
        return self.workload.cutter.gold(text)[: self.settings.output_tokens]
