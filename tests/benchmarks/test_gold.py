"""Gold answers through a whole run, and variants with a verifier or a shortened prompt."""

import json

import pytest
from made_up_rows import results, row
from tiny import tiny_engine, tiny_tokenizer

from benchmarks.decode.graft_variants import SuiteEngine, graft_variant, preset_of
from benchmarks.likelihood import log_likelihood
from benchmarks.quality.report import GOLD_LOG_P, qualities
from graft.bench.result_file import GOLD, LIKELIHOOD
from graft.bench.summary import notes, summarize
from graft.decode.prepared_request import as_prepared

PROMPT = [*range(10, 60)]
SHORT = PROMPT[:3] + PROMPT[-5:]


@pytest.fixture
def meetings(tmp_path):
    """Four meetings of 300 words and two queries each, with answers."""
    rows = [
        {
            "general_query_list": [{"query": f"What was {name}?", "answer": "the end"}],
            "specific_query_list": [{"query": f"Who was {name}?", "answer": "Ann"}],
            "meeting_transcripts": [{"speaker": "Ann", "content": f"{name} said the end " * 60}],
        }
        for name in ("one", "two", "six", "ten")
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_gold_answers_and_texts_are_written_once(settings, measure, fake_graft, meetings):
    chosen = settings(suite="qmsum", data=meetings, limit=2)
    _, found, _ = measure(chosen)
    assert [line["kind"] for line in found.records[GOLD]] == ["rouge", "rouge"]
    assert {each["output"] for each in found.rows} == {
        each["output"] for each in found.rows if "texts" in each
    }
    before = chosen.out.read_text()
    measure(chosen)
    assert chosen.out.read_text() == before


def test_quality_is_compared_with_the_baseline(settings, measure, fake_graft, meetings):
    pytest.importorskip("rouge_score")
    _, found, _ = measure(settings(suite="qmsum", data=meetings))
    lines = {line.variant: line for line in qualities(found, "plain")[0]}
    assert lines["plain"].measure == "ROUGE-L-Sum"
    assert lines["plain"].difference is None
    assert lines["auto"].difference.mean == 0  # the same outputs
    assert lines["auto"].detectable is None


def test_likelihood_is_measured_once_per_prompt_and_context(
    settings, measure, fake_graft, meetings
):
    chosen = settings(
        suite="qmsum", data=meetings, limit=2, quality="likelihood", contexts=(512, 768)
    )
    for _ in range(2):
        _, found, _ = measure(chosen)
        requests = [each for each in fake_graft if "gold" in each]
        assert len(requests) == 4
    assert all(0 < len(gold) <= 8 for each in requests for gold in each["gold"])
    lines = [line for line in qualities(found, "plain")[0] if line.measure == GOLD_LOG_P]
    assert {(line.cell[1], line.variant) for line in lines} == {
        (512, "plain"), (512, "auto"), (768, "plain"), (768, "auto"),
    }  # fmt: skip
    assert all(line.value.mean == -2 for line in lines)


def test_chain_of_thought_is_followed_up_without_its_document(
    settings, measure, fake_graft, tmp_path
):
    question = {
        "context": "the end of the owls " * 30,
        "question": "What?",
        "choices": dict(zip("ABCD", ("one", "two", "six", "ten"), strict=True)),
        "answer": "B",
    }
    (tmp_path / "short.0.jsonl").write_text(json.dumps(question) + "\n")
    chosen = settings(suite="longbench_v2", data=tmp_path / "short.0.jsonl", split="all")
    _, found, _ = measure(chosen)
    rows = {each["category"]: each for each in found.rows}
    assert "replies" not in rows["short-direct"]
    assert len(rows["short-cot"]["replies"]) == 1
    follow_up = next(each for each in fake_graft if each["id"] == "reply")
    longest = max(len(each["prompts"][0]) for each in fake_graft)
    assert len(follow_up["prompts"][0]) < longest


@pytest.mark.parametrize(
    ("name", "process", "exactness"),
    [
        ("auto", "graft", "text"),
        ("sd@rejection", "graft@rejection", "distribution"),
        ("rapid@rapid:20", "graft@rapid:20", "none"),
        ("rag", "graft", "none"),
    ],
)
def test_exactness_depends_on_verifier_and_prompt(name, process, exactness):
    variant = graft_variant(name)
    assert (variant.process, variant.exactness) == (process, exactness)


def test_preset_of_a_shortened_prompt():
    assert [preset_of(name) for name in ("rag", "rag+copy", "auto")] == ["plain", "copy", "auto"]


def request(method, prompts, **more):
    given = {"prompts": prompts, "max_tokens": 12, "end_tokens": [], "method": method}
    return {**given, "temperature": 0.0, "seeds": [1, 2][: len(prompts)], **more}


def test_likelihood_of_gold_is_that_of_the_whole_answer():
    engine = tiny_engine()
    [found] = SuiteEngine(engine).ask(request("plain", [PROMPT], gold=[[5, 6]]))["log_likelihoods"]
    assert found == pytest.approx(sum(log_likelihood(engine, PROMPT, [5, 6])))


@pytest.mark.parametrize(("method", "first"), [("plain", True), ("copy", True), ("copy", False)])
def test_prompts_are_prefilled_before_they_are_timed(method, first):
    engine = tiny_engine()
    engine.model.prefixes.use(max_rows=4096)
    begun, submit = [], engine.submit

    def submitted(request, **options):
        begun.append(as_prepared(request).request.params.max_tokens)
        return submit(request, **options)

    engine.submit = submitted
    prompts = [PROMPT * 11, PROMPT[::-1] * 11]
    found = SuiteEngine(engine, prefill_first=first).ask(request(method, prompts))
    steps = 1 if method == "plain" else 3 + 2 * len(prompts[0]) // engine.model.chunk
    assert begun == [*([steps] * 2 if first else []), 12, 12]
    assert [len(tokens) for tokens in found["token_ids"]] == [12, 12]


@pytest.mark.parametrize("method", ["rag", "rag+copy"])
@pytest.mark.parametrize("count", [1, 2])
def test_rag_generates_from_the_shortened_prompt(method, count):
    backend = SuiteEngine(tiny_engine())
    backend._short = lambda prompt, budget: SHORT

    def ask(method, prompt):
        return backend.ask(request(method, [prompt] * count))

    found, expected = ask(method, PROMPT), ask("plain", SHORT)
    assert found["token_ids"] == expected["token_ids"]
    assert found["token_ids"] != ask("plain", PROMPT)["token_ids"]
    assert found["prefilled_tokens"] == count * len(SHORT)
    assert (found["drafted"] > 0) == (method == "rag+copy")


def test_retrieval_shortens_long_prompts_alone():
    backend = SuiteEngine(tiny_engine())
    text = "The end and the answer came after the rain. " * 200 + "Who won?"
    prompt = tiny_tokenizer().encode(text)
    short = backend._short(prompt)
    assert len(short) < len(prompt) / 2
    assert short[-4:] == prompt[-4:]


def test_inexact_outputs_are_a_note_and_no_error():
    found = results(
        row(),
        row(variant="rapid@rapid", output="b", exactness="none"),
        row(variant="auto", output="b"),
    )
    lines = notes(found, *summarize(found))
    assert sum("outputs differ" in line for line in lines) == 1
    assert any("rapid@rapid does not keep the model's output" in line for line in lines)


def test_likelihood_holds_for_variants_that_keep_the_distribution():
    found = results(
        row(),
        row(variant="rag", output="b", exactness="none"),
        row(variant="rapid@rapid", output="b", exactness="none"),
    )
    found.records[GOLD].append({"prompt": 1, "kind": "f1", "references": ["x"]})
    for shortened, value in ((False, -4.0), (True, -2.0)):
        line = {"prompt": 1, "context": 0, "shortened": shortened, "tokens": 2}
        found.records[LIKELIHOOD].append(line | {"log_likelihood": value})
    lines = {line.variant: line for line in qualities(found, "plain")[0]}
    assert {name: line.value.mean for name, line in lines.items()} == {"plain": -2.0, "rag": -1.0}
    assert lines["rag"].difference.mean == 1.0
