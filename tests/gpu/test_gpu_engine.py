"""The same engine on a CUDA device: run with `pytest -m gpu`."""

import numpy as np
import pytest
import torch
from short_prompts import ends_only
from test_lossless_streaming import narrow_drafters
from tiny import tiny_draft_model, tiny_engine, tiny_network
from tiny_heads import KINDS, tiny_head

from graft.assemble.loading import make_verifier
from graft.assemble.presets import NETWORK, presets_of
from graft.draft.drafter import Budget, DraftContext
from graft.draft.models.chains import Chains
from graft.draft.models.growth import ChainGrowth
from graft.draft.models.model import ModelDrafter
from graft.integrations import hf
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import from_paths
from graft.verify.draws import Draws
from graft.verify.rapid import Shift

PROMPT = "the cat and the hen and the rat in the inn; " * 6
SETTINGS = {
    "greedy": SamplingParams(max_tokens=96),
    "sampled": SamplingParams(max_tokens=96, temperature=0.8, top_p=0.95, seed=3),
    "penalised": SamplingParams(max_tokens=96, temperature=0.5, repetition_penalty=1.1, seed=4),
}


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_drafting_never_changes_the_output_on_a_gpu(forward, params):
    engine = tiny_engine(tiny_network().cuda(), forward=forward)
    plain = engine.generate(PROMPT, params, draft="plain")
    for preset in presets_of():
        assert engine.generate(PROMPT, params, draft=preset).token_ids == plain.token_ids


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_a_draft_model_never_changes_the_output_on_a_gpu(forward, params):
    draft_model = tiny_draft_model(forward=forward, device="cuda")
    engine = tiny_engine(tiny_network().cuda(), forward=forward, draft_model=draft_model)
    plain = engine.generate(PROMPT, params, draft="plain")
    for preset in ("auto", "sd", "sd-tree", *presets_of(NETWORK)):
        drafted = engine.generate(PROMPT, params, draft=preset)
        assert drafted.token_ids == plain.token_ids
        stats = drafted.stats
        assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean"])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_levels_drawn_without_a_wait_are_those_drawn_with_one(forward, params, monkeypatch):
    trees = []
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr(ChainGrowth, "grows_ahead", lambda growth, drafts: False)
        draft_model = tiny_draft_model(forward=forward, device="cuda")
        drafter = ModelDrafter(draft_model, ChainGrowth(6), nodes=6, adaptive=False)
        contexts = [DraftContext(each, [5, 6, 7, 8 + each], [], tokens=[9]) for each in range(3)]
        for context in contexts:
            context.sampler = Sampler(params, context.prompt, 128)
            context.sampler.record(context.tokens)
            drafter.start(context)
        for accepted in (0, 3, 6, 1):
            trees.append([])
            for context, tree in zip(
                contexts, drafter.propose(contexts, Budget(6, np.ones(7))), strict=True
            ):
                trees[-1].append(tree.tokens.tolist())
                came = [*tree.paths()[-1][:accepted], 11]
                context.sampler.record(came)
                context.tokens += came
    assert trees[:4] == trees[4:]


LONG = [5 + (i * 7 + i // 90) % 118 for i in range(1100)]


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
@pytest.mark.parametrize("draft_device", [None, "cuda", "cpu"])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_a_short_context_never_changes_the_output_on_a_gpu(forward, draft_device, params):
    """The target itself, another model beside it, and one on another device."""
    draft_model = None
    if draft_device:
        kind = forward if draft_device == "cuda" else "panels"
        draft_model = tiny_draft_model(forward=kind, device=draft_device, cost=0.05)
    engine = tiny_engine(
        tiny_network().cuda(), forward=forward, draft_model=draft_model, shorten=ends_only,
        chains=Chains(gamma=5),
    )  # fmt: skip
    plain = engine.generate(LONG, params, draft="plain")
    drafted = engine.generate([LONG, LONG[:1050]], params, draft="rapid")[0]
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.stats.num_accepted_draft_tokens < drafted.stats.num_draft_tokens


@pytest.mark.gpu
@pytest.mark.parametrize("verifier", ["rejection", "rapid", "rapid-phat"])
def test_rules_with_q_on_a_gpu(verifier):
    engine = tiny_engine(
        tiny_network().cuda(), forward="graphed", shorten=ends_only,
        verify=make_verifier(verifier, Shift(eta=5.0)), chains=Chains(gamma=5, sampled=True),
    )  # fmt: skip
    results = [engine.generate(LONG, SETTINGS["sampled"], draft="rapid") for _ in range(2)]
    assert results[0].token_ids == results[1].token_ids
    for result in results:
        assert result.lossless == (verifier == "rejection")
        assert 0 < result.stats.num_accepted_draft_tokens < result.stats.num_draft_tokens


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_the_target_over_a_part_of_its_cache_never_changes_the_output_on_a_gpu(forward, params):
    engine = tiny_engine(tiny_network().cuda(), forward=forward)
    prompts = [PROMPT * (1 + i % 3) + "the river"[: 2 + i] for i in range(4)]
    plain = [engine.generate(prompt, params, draft="plain").token_ids for prompt in prompts]
    for name, drafter in narrow_drafters(engine).items():
        engine.drafters[name] = drafter
        drafted = engine.generate(prompts, params, draft=name)
        assert [result.token_ids for result in drafted] == plain
        accepted = sum(result.stats.num_accepted_draft_tokens for result in drafted)
        assert 0 < accepted < sum(result.stats.num_draft_tokens for result in drafted)


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_a_head_never_changes_the_output_on_a_gpu(forward, kind, params):
    network = tiny_network().cuda()
    head = tiny_head(kind, network, draft_vocabulary=110)
    engine = tiny_engine(network, forward=forward, heads=[head])
    prompts = [PROMPT * (1 + i % 3) + "the river"[: 2 + i] for i in range(4)]
    plain = [engine.generate(prompt, params, draft="plain").token_ids for prompt in prompts]
    for preset in (kind, "head", "auto", *presets_of(NETWORK)):
        drafted = engine.generate(prompts, params, draft=preset)
        assert [result.token_ids for result in drafted] == plain
        accepted = sum(result.stats.num_accepted_draft_tokens for result in drafted)
        assert 0 < accepted < sum(result.stats.num_draft_tokens for result in drafted)


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["lean", "hook"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
def test_invariant_drafting_never_changes_the_output_in_16_bits(forward, dtype, params):
    engine = tiny_engine(tiny_network().cuda().to(dtype), forward=forward, invariant=True)
    plain = engine.generate(PROMPT, params, draft="plain")
    for preset in presets_of():
        assert engine.generate(PROMPT, params, draft=preset).token_ids == plain.token_ids


@pytest.fixture
def no_waiting():
    """Anything that makes the host wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_draws_are_started_without_waiting_for_the_device(no_waiting):
    vocabulary, trees = 50_000, [from_paths(3, [[4, 5, 6], [7, 8]]), from_paths(4, [[9] * 9])]
    more = dict(top_k=40, top_p=0.9, min_p=0.01, presence_penalty=0.5, logit_bias={9: 1.0})
    ways = [*SETTINGS.values(), SamplingParams(temperature=1.0, seed=5, **more)]
    samplers = [Sampler(params, [1, 2, 3], vocabulary) for params in ways]
    asked = [(sampler, tree) for sampler in samplers for tree in trees]
    counts = [len(tree) for _, tree in asked]
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 4 * torch.randn(sum(counts), vocabulary, device="cuda", generator=generator)
    draws = Draws(asked, logits)
    for sampler in samplers:
        sampler.record([4])
    again = Draws(asked, logits)
    torch.cuda.set_sync_debug_mode("default")
    for (sampler, tree), own, drawn in zip(asked, logits.split(counts), again.wait(), strict=True):
        paths = zip(own, tree.paths(), strict=True)
        assert drawn == [sampler.draw(row, path) for row, path in paths]
    assert draws.wait() != again.wait()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_forwards_agree_in_16_bits_on_a_gpu(dtype):
    tokens = list(range(3, 40))
    logits = []
    for forward in ("graphed", "lean", "hook"):
        model = tiny_engine(tiny_network().cuda().to(dtype), forward=forward).model
        logits.append(model.prefill(model.open(64), tokens))
    scale = float(logits[0].abs().max())
    for other in logits[1:]:
        assert float((logits[0] - other).abs().max()) < 0.05 * scale


@pytest.mark.gpu
@pytest.mark.parametrize("forward", ["graphed", "lean", "hook"])
def test_batches_and_shared_prefixes_change_nothing_on_a_gpu(forward):
    engine = tiny_engine(tiny_network().cuda(), forward=forward)
    prompts = [PROMPT * (1 + i % 3) + "the river"[: 2 + i] for i in range(6)]
    alone = [engine.generate(prompt, SETTINGS["sampled"]).token_ids for prompt in prompts]
    engine.model.prefixes.use(max_rows=8192)
    for _ in range(2):
        together = engine.generate(prompts, SETTINGS["sampled"])
        assert [result.token_ids for result in together] == alone
    assert max(result.stats.cached_tokens for result in together) > 0


@pytest.mark.gpu
def test_transformers_generate_is_drafted_on_a_gpu():
    network = tiny_network().cuda()
    ids = torch.randint(3, 120, (4, 40), generator=torch.Generator().manual_seed(0)).cuda()
    mask = torch.ones_like(ids)
    mask[0, :13] = mask[2, :5] = 0
    options = {"attention_mask": mask, "max_new_tokens": 60, "do_sample": False, "pad_token_id": 0}
    plain = network.generate(ids, **options)
    assert torch.equal(network.generate(ids, custom_generate=hf.generate, **options), plain)
    # By measured costs a step of a tiny network may be too cheap to save any.
    always = {"custom_generate": hf.generate, "draft": "pld"}
    assert torch.equal(network.generate(ids, **always, **options), plain)
    assert max(stats.tokens_per_step for stats in hf.last_stats(network)) > 1.5
