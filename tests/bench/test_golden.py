"""Gold through a whole run: written down, compared, weighed; what rules keep of a model."""

import json

import pytest
from made_up_answers import Recorder, answer, results
from tiny import tiny_tokenizer

from graft.bench import short_prompts
from graft.bench.quality.report import LIKELIHOOD
from graft.bench.records import Likelihood, read_results
from graft.bench.report import report
from graft.bench.runner import run
from graft.bench.systems import graft_system, preset_of
from graft.bench.tables import as_markdown
from graft.bench.task import Gold
from graft.errors import InputError


@pytest.fixture
def meetings(tmp_path):
    """Four meetings of 300 words and two queries each, with answers."""
    rows = [
        {
            "general_query_list": [{"query": f"What was {name}?", "answer": "the end"}],
            "specific_query_list": [{"query": f"Who was {name}?", "answer": "nobody"}],
            "meeting_transcripts": [{"speaker": "Ann", "content": f"{name} said the end " * 60}],
        }
        for name in ("one", "two", "six", "ten")
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results.jsonl"


def test_gold_and_texts_are_written_once(settings, fake_workers, out, meetings):
    asked = settings(suite="qmsum", data=meetings, limit=2)
    assert run(asked, out, Recorder())
    found = read_results(out)
    assert len(found.gold) == 2
    assert {gold.kind for gold in found.gold.values()} == {"rouge"}
    texts = {each.output for each in found.answers.values()}
    assert set(found.texts) == texts
    lines = out.read_text().splitlines()
    assert run(asked, out, Recorder())  # nothing is left to do
    assert out.read_text().splitlines() == lines


def test_quality_stands_beside_speed(settings, fake_workers, out, meetings):
    pytest.importorskip("rouge_score")
    run(settings(suite="qmsum", data=meetings), out, Recorder())
    told = report(read_results(out))
    rows = {row.system: row for row in told.quality}
    assert rows["plain"].measure == "ROUGE-L-Sum"
    assert rows["plain"].difference is None
    assert rows["auto"].difference.mean == 0  # the same answers
    assert rows["auto"].detectable is None
    assert "| measure |" in as_markdown(told)


def test_the_likelihood_of_gold_is_asked_once_per_prompt_and_context(
    settings, fake_workers, out, meetings
):
    asked = settings(
        suite="qmsum", data=meetings, limit=2, quality="likelihood", contexts=(512, 768)
    )
    assert run(asked, out, Recorder())
    weighed = [each for each in fake_workers() if "gold" in each]
    assert len(weighed) == 4  # two prompts at two contexts, whoever drafts
    assert all(0 < len(gold) <= 8 for each in weighed for gold in each["gold"])
    assert run(asked, out, Recorder())
    assert len([each for each in fake_workers() if "gold" in each]) == 4
    rows = [row for row in report(read_results(out)).quality if row.measure == LIKELIHOOD]
    assert {(row.context, row.system) for row in rows} == {
        (512, "plain"), (512, "auto"), (768, "plain"), (768, "auto"),
    }  # fmt: skip
    assert all(row.value.mean == -2 for row in rows)


def test_a_chain_of_thought_is_followed_up_without_its_document(
    settings, fake_workers, out, tmp_path
):
    row = {
        "context": "the end of the owls " * 30,
        "question": "What?",
        "choices": dict(zip("ABCD", ("one", "two", "six", "ten"), strict=True)),
        "answer": "B",
    }
    (tmp_path / "short.0.jsonl").write_text(json.dumps(row) + "\n")
    asked = settings(
        suite="longbench_v2", data=tmp_path / "short.0.jsonl", drafts=("plain",), split="all"
    )
    assert run(asked, out, Recorder())
    found = {each.category: each for each in read_results(out).answers.values()}
    assert found["short-direct"].replies is None
    assert len(found["short-cot"].replies) == 1
    *_, cot, follow_up = fake_workers()
    assert follow_up["max_tokens"] == 128
    assert len(follow_up["prompts"][0]) < len(cot["prompts"][0])


def test_a_rule_of_its_own_has_a_worker_of_its_own(settings, fake_workers, out, questions):
    asked = settings(limit=1, categories=("rag",), drafts=("plain", "copy", "copy@rejection"))
    assert run(asked, out, Recorder())
    given = {tuple(each["given"]): each["method"] for each in fake_workers()}
    assert len(given) == 2
    [ruled] = [words for words in given if "--verifier" in words]
    assert ruled[ruled.index("--verifier") + 1] == "rejection"
    assert given[ruled] == "copy"
    found = {each.system: each for each in read_results(out).answers.values()}
    assert found["copy"].keeps == "text"
    assert found["copy@rejection"].keeps == "distribution"


@pytest.mark.parametrize(
    ("name", "process", "keeps"),
    [
        ("auto", "graft", "text"),
        ("sd@rejection", "graft@rejection", "distribution"),
        ("rapid@rapid:20", "graft@rapid:20", "nothing"),
        ("rag", "graft", "nothing"),
    ],
)
def test_what_a_system_keeps(name, process, keeps):
    system = graft_system(name)
    assert (system.process, system.keeps) == (process, keeps)


def test_who_drafts_from_a_shortened_prompt():
    assert [preset_of(name) for name in ("rag", "rag+copy", "auto")] == ["plain", "copy", "auto"]


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ("auto@nothing", "unknown verifier 'nothing' in 'auto@nothing'; choose one of walk"),
        ("auto@rejection:much", "behind the colon comes eta"),
        ("nobody@rejection", "unknown draft 'nobody'"),
    ],
)
def test_names_that_cannot_be_measured_are_refused(settings, draft, says):
    with pytest.raises(InputError, match=says):
        settings(drafts=("plain", draft))


def test_options_that_graft_load_does_not_take_are_refused(settings):
    with pytest.raises(InputError, match="'gama', which graft.load does not take"):
        settings(load_options={"gama": 3})
    with pytest.raises(InputError, match="'dtype', which is set by other options"):
        settings(load_options={"dtype": "bf16"})
    settings(load_options={"max_batch": 2})  # a queue, if --batch is larger
    with pytest.raises(InputError, match="--quality is one of answers, likelihood"):
        settings(quality="good")


def test_rag_reads_retrieved_passages_of_a_long_prompt():
    tokenizer = tiny_tokenizer()
    prompt = tokenizer.encode("The end and the answer came after the rain. " * 200 + "Who won?")
    short = short_prompts.shortened(short_prompts.shortener(tokenizer), prompt)
    assert len(short) < len(prompt) / 2
    assert short[-4:] == prompt[-4:]


def test_rag_is_refused_where_prompts_cannot_be_taken_apart():
    with pytest.raises(InputError, match="rag needs a model with a fast tokenizer"):
        short_prompts.shortener(None)


def test_a_short_prompt_stays_as_it_is():
    assert short_prompts.shortened(lambda tokens, spans: None, [1, 2, 3]) == [1, 2, 3]


def test_nobody_is_told_that_a_shifted_output_is_an_error():
    told = report(
        results(
            answer(system="plain", output="a", keeps="text"),
            answer(system="rapid@rapid", output="b", keeps="nothing"),
            answer(system="auto", output="b", keeps="text"),
            peers=("rapid@rapid",),
        )
    )
    assert sum("must not happen" in note for note in told.notes) == 1
    assert any("rapid@rapid does not keep the model's own output" in note for note in told.notes)


def test_likelihoods_belong_to_who_keeps_the_distribution():
    found = results(
        answer(system="plain", output="a", keeps="text"),
        answer(system="rag", output="b", keeps="nothing"),
        answer(system="rapid@rapid", output="b", keeps="nothing"),
        peers=("rag", "rapid@rapid"),
    )
    found.gold[1] = Gold("f1", ("x",))
    for shortened, value in ((False, -4.0), (True, -2.0)):
        each = Likelihood(1, 0, shortened, 2, value)
        found.likelihoods[each.key] = each
    rows = {row.system: row for row in report(found).quality if row.measure == LIKELIHOOD}
    assert {name: row.value.mean for name, row in rows.items()} == {"plain": -2.0, "rag": -1.0}
    assert rows["rag"].difference.mean == 1.0
