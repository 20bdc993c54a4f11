"""Runs over a suite: order, resuming, engines that fail, settings that cannot be mixed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.decode.run import backends
from benchmarks.report import report
from graft import Shift
from graft.bench.result_file import ENGINE, PROMPT, read_results
from graft.draft.drafter import Budget, DraftContext
from graft.errors import InputError
from graft.models.checkpoints.pretrained import locate


def test_every_variant_gets_every_prompt_after_a_warm_up(
    settings, measure, fake_graft, fake_workers
):
    complete, results, progress = measure(settings(limit=1, engines=("transformers",)))
    assert complete
    assert (progress.total, progress.done, progress.lines) == (9, 0, [])
    order = [(row["variant"], row["prompts"][0]) for row in results.rows]
    assert order == [
        ("plain", 1), ("auto", 1), ("transformers", 1),
        ("auto", 5), ("transformers", 5), ("plain", 5),
        ("transformers", 9), ("plain", 9), ("auto", 9),
    ]  # fmt: skip
    assert len(fake_graft) == 2 + 6
    assert len(fake_workers()) == 1 + 3


def test_engines_get_the_same_tokens_and_end_tokens(settings, measure, fake_graft, fake_workers):
    measure(settings(limit=1, split="all", categories=("qa",), engines=("transformers",)))
    names = ("prompts", "end_tokens", "max_tokens")
    requests = [*fake_graft, *fake_workers()]
    assert len({json.dumps([each[name] for name in names]) for each in requests}) == 1
    assert requests[0]["end_tokens"] == [0]
    assert all("float32" in each["given"] for each in fake_workers())


def test_rows_have_times_counts_and_outputs(settings, measure, fake_graft, fake_workers):
    chosen = settings(limit=1, categories=("rag",), engines=("transformers-lookup",))
    _, results, _ = measure(chosen)
    rows = {row["variant"]: row for row in results.rows}
    assert rows["plain"]["prompts"] == [5]
    assert (rows["plain"]["prefill_seconds"], rows["plain"]["decode_seconds"]) == (0.5, 1.0)
    assert (rows["plain"]["tokens"], rows["plain"]["steps"]) == (5, 2)
    assert rows["transformers-lookup"]["accepted_by_source"] == {"drafted": 2}
    assert [line["process"] for line in results.records[ENGINE]] == ["graft", "transformers"]
    assert len(results.records[PROMPT]) == 1
    assert "| rag | plain |" in report(chosen.out).as_markdown()


def test_outputs_end_by_length_alone_with_ignore_eos(settings, measure, fake_graft):
    measure(settings(limit=1, ignore_eos=True))
    assert not any(each["end_tokens"] for each in fake_graft)
    with pytest.raises(InputError, match="ignore_eos"):
        measure(settings(limit=2))


def test_warm_up_runs_come_before_the_timed_one(settings, measure, fake_graft):
    _, results, _ = measure(settings(limit=1, warm_ups=2))
    assert len(results.rows) == 6
    methods = [(each["method"], each["seeds"][0]) for each in fake_graft]
    assert methods[:8] == [("plain", 1)] * 4 + [("auto", 1)] * 4
    assert methods[8:14] == [("auto", 5)] * 3 + [("plain", 5)] * 3


def test_a_run_resumes_where_it_was_interrupted(settings, measure, fake_graft):
    chosen = settings(limit=1)
    with pytest.raises(KeyboardInterrupt):
        measure(chosen, interrupt_after=3)
    assert len(read_results(chosen.out).rows) == 3
    with chosen.out.open("a") as file:
        file.write('{"record":"row","sui')
    _, results, progress = measure(chosen)
    assert (progress.total, progress.done) == (6, 3)
    assert {row["session"] for row in results.rows} == {0, 1}
    before = chosen.out.read_bytes()
    measure(chosen)
    assert chosen.out.read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 9}, "max_tokens 8, not 9"),
        ({"threads": 2}, "threads 1, not 2"),
        ({"dtype": "bf16"}, "dtype fp32, not bf16"),
        ({"load_options": {"gamma": 2}}, "load_options {}, not {'gamma': 2}"),
    ],
)
def test_settings_that_change_times_are_not_mixed(settings, measure, fake_graft, changes, message):
    measure(settings(limit=1, categories=("qa",)))
    with pytest.raises(InputError, match=f"was measured with {message}, and cannot be compared"):
        measure(settings(limit=2, categories=("qa",), **changes))


def test_other_questions_are_not_mixed(settings, measure, fake_graft, questions):
    measure(settings(limit=1))
    file = questions / "question.jsonl"
    file.write_text(file.read_text().replace("the end of", "the beginning of"))
    with pytest.raises(InputError, match="was measured with questions"):
        measure(settings(limit=2))


def test_prompts_variants_and_temperatures_may_be_added(settings, measure, fake_graft):
    measure(settings(limit=1))
    more = settings(limit=2, drafts=("plain", "auto", "pld"), temperatures=(0.0, 1.0), repeats=2)
    _, _, progress = measure(more)
    assert (progress.total, progress.done) == (6 * 3 * 2 * 2, 6)


def test_auto_dtype_is_that_of_graft(settings, measure, fake_graft, fake_workers):
    _, results, _ = measure(settings(limit=1, dtype="auto", engines=("transformers",)))
    assert results.header.settings["dtype"] == "bf16"
    assert all("bfloat16" in each["given"] for each in fake_workers())


def test_an_engine_without_the_dtype_is_left_out(settings, measure, fake_graft, fake_workers):
    complete, results, progress = measure(
        settings(limit=1, dtype="int8", engines=("transformers",))
    )
    assert complete
    assert progress.lines == ["transformers is left out: it has no int8"]
    assert {row["variant"] for row in results.rows} == {"plain", "auto"}


def failing(settings, words):
    return settings(limit=1, engines=("transformers",), engine_options={"transformers": words})


def test_an_engine_that_ends_is_given_up(settings, measure, fake_graft, fake_workers):
    complete, results, progress = measure(failing(settings, "--die-at 3"))
    assert not complete
    [line] = progress.lines
    assert "transformers: prompt 5: ended with code 3 (out of memory); see" in line
    variants = [row["variant"] for row in results.measured]
    assert [variants.count(name) for name in ("plain", "auto", "transformers")] == [3, 3, 1]
    assert sum("error" in row for row in results.rows) == 1


def test_an_engine_that_does_not_start_is_one_message(settings, measure, fake_graft, fake_workers):
    _, _, progress = measure(failing(settings, "--broken"))
    assert "ended with code 1 (no such engine here)" in progress.lines[0]
    missing = replace(failing(settings, ""), pythons={"transformers": "/nowhere/python"})
    _, _, progress = measure(replace(missing, engine_options={}, out=None))
    assert "/nowhere/python cannot be run (No such file or directory)" in progress.lines[0]


def test_a_failed_request_is_measured_again_on_resume(settings, measure, fake_graft, fake_workers):
    chosen = failing(settings, "--fail-at 3")
    complete, results, progress = measure(chosen)
    assert complete
    assert "transformers: prompt 5: ValueError: too long" in progress.lines[0]
    _, results, progress = measure(chosen)
    assert (progress.total - progress.done, progress.lines) == (1, [])
    assert not any("error" in row for row in results.rows)


def test_variants_without_batches_are_left_out_of_them(settings, measure, fake_graft, fake_workers):
    chosen = settings(limit=2, engines=("transformers-lookup",), batches=(1, 2), groups=1)
    _, results, progress = measure(chosen)
    assert progress.lines == ["transformers-lookup takes one prompt at a time: no batches"]
    batched = [row for row in results.rows if row["batch"] == 2]
    assert {row["variant"] for row in batched} == {"plain", "auto"}
    assert len(batched) == 2
    assert batched[0]["category"] == "mixed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafts": ()}, "nothing to measure"),
        ({"drafts": ("auto@nothing",)}, "unknown verifier 'nothing' in 'auto@nothing'"),
        ({"drafts": ("auto@rejection:much",)}, "behind the colon comes eta"),
        ({"drafts": ("magic@rejection",)}, "unknown draft 'magic'"),
        ({"drafts": ("magicdec@1.2",)}, "a rate from 0 to 1"),
        ({"drafts": ("copy@0.8",)}, "only drafts of a model or a head can be dialled"),
        ({"drafts": ("rag+magicdec@0.8",)}, "a shortened prompt cannot be dialled"),
        ({"drafts": ("sd@0.8",)}, "needs a draft model"),
        ({"engines": ("sglang",)}, "unknown engine 'sglang'"),
        ({"engines": ("llama.cpp",)}, "llama.cpp needs --gguf"),
        ({"engine_options": {"vllm": ""}}, "'vllm', which is not in --engines"),
        ({"load_options": {"gama": 3}}, "'gama', which graft.load does not take"),
        ({"load_options": {"dtype": "bf16"}}, "'dtype', which graft.load does not take"),
        ({"load_options": {"rasd": {"l": 2}}}, "'rasd' takes an object of top_k, .* not .\"l\": 2"),
        ({"load_options": {"rasd": 2}}, "'rasd' takes an object of top_k, branches, .* not 2"),
        ({"load_options": {"rasd": {"length": 2.5}}}, "RASD's length must be between 1 and 32"),
        ({"load_options": {"shift": {"eta": "5"}}}, "'shift' takes an object of eta, tail, margin"),
        ({"quality": "good"}, "--quality is one of answers, likelihood"),
        ({"contexts": (0, 512)}, "--contexts takes numbers"),
        ({"batches": (0,)}, "--batches takes whole numbers"),
        ({"groups": 0}, "--groups must be at least 1"),
        ({"split": "half"}, "unknown split 'half'"),
        ({"dtype": "fp8"}, "unknown dtype 'fp8'"),
    ],
)
def test_wrong_settings_are_refused(settings, changes, message):
    with pytest.raises(InputError, match=message):
        settings(**changes)


@pytest.fixture
def started(settings, tiny_folder):
    """The engines of variants with a draft model, loaded with these options."""

    def start(drafts, **options):
        chosen = settings(drafts=drafts, draft_model=str(tiny_folder), load_options=options)
        with backends(chosen, locate(chosen.model)) as running:
            return [running.get(variant) for variant in chosen.variants()]

    return start


@pytest.mark.parametrize("draft", ["rasd-pld", "casd"])
def test_length_of_branches_reaches_the_lookup(started, draft):
    [backend] = started((draft,), **{draft.partition("-")[0]: {"length": 2}})
    [lookup, _] = backend.engine.drafters[draft].drafters
    context = DraftContext(0, [*range(40, 60)], [(0, 20)], tokens=[40, 41, 42])
    lookup.start(context)
    [tree] = lookup.propose([context], Budget(64, np.ones(65)))
    assert tree.tokens[1:].tolist() == [43, 44]


def test_eta_of_a_variant_replaces_that_of_the_load_options(started):
    found = started(("sd@rapid", "sd@rapid:20"), shift={"eta": 5, "margin": 1}, gamma=2)
    shifts = [backend.engine.loop._verify.shift for backend in found]
    assert shifts == [Shift(eta=5, margin=1), Shift(eta=20, margin=1)]


def test_rag_retrieves_as_many_tokens_as_the_load_options_say(started):
    [backend] = started(("rag",), retrieved=100)
    text = "The end and the answer came after the rain. " * 200 + "Who won?"
    prompt = backend.engine.loaded.tokenizer.encode(text)
    assert len(backend._short(prompt)) < 200 < len(prompt) / 4
