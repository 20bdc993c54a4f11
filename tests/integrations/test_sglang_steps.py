"""SGLang's steps of several sizes, with stand-ins for SGLang's classes and a model that copies."""

import random
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graft.integrations import sglang_steps as steps
from graft.integrations.draft_width import accepted_at
from graft.integrations.sglang import WorkerDrafts
from graft.integrations.sglang_chains import chains_of
from graft.integrations.sglang_steps import (
    LONGEST_REST,
    SEARCH_SHARE,
    LastStep,
    NewestTokens,
    Pace,
    SearchPrice,
    full_mask,
    known_lengths,
    resolve_known_lengths,
    sizes_of,
)

NODES = 16
PLACES = 8
PLAIN = object()  # SGLang's SpeculativeAlgorithm.NONE


def test_the_full_mask_lets_every_node_see_the_whole_text_and_its_ancestors():
    lengths = [3, 0, 5]
    trees = torch.rand(3, 4, 4) < 0.5
    expected = [
        torch.cat([torch.ones(4, length, dtype=torch.bool), tree], 1).flatten()
        for length, tree in zip(lengths, trees, strict=True)
    ]
    found = full_mask(trees, torch.tensor(lengths), sum(lengths))
    assert torch.equal(found, torch.cat(expected))


def batch_of(*requests, decode=True):
    return SimpleNamespace(
        reqs=list(requests),
        req_pool_indices=torch.tensor([each.place for each in requests]),
        req_pool_indices_cpu=torch.tensor([each.place for each in requests]),
        has_grammar=False,
        return_hidden_states=False,
        forward_mode=SimpleNamespace(is_decode=lambda: decode),
    )


def request(name, place, prompt=(1, 2, 3)):
    return SimpleNamespace(
        rid=name,
        place=place,
        origin_input_ids=list(prompt),
        origin_input_ids_unpadded=list(prompt),
        output_ids=[],
        sampling_params=SimpleNamespace(custom_params=None),
    )


def test_the_newest_tokens_are_those_of_the_last_step_of_each_request():
    known, a, b = NewestTokens(PLACES, "cpu"), request("a", 3), request("b", 5)
    known.note(batch_of(a, b), torch.tensor([[10, 11, 0], [20, 0, 0]]), torch.tensor([2, 1]))
    known.note(batch_of(b), torch.tensor([[21]]), None)
    assert known.newest(batch_of(b, a)).tolist() == [21, 11]


def test_tokens_in_flight_are_those_that_the_scheduler_does_not_know_yet():
    last, a, b = LastStep(), request("a", 3), request("b", 5)
    last.note(batch_of(a, b), torch.tensor([[10, 11, 0], [20, 0, 0]]), torch.tensor([2, 1]))
    assert last.in_flight(batch_of(b, a), [3, 4]) == [[20], [10, 11]]
    a.output_ids = [10, 11]
    assert last.in_flight(batch_of(b, a), [3, 4]) == [[20], []]


class Clock:
    """Steps whose seconds are known."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(steps.time, "perf_counter", lambda: self.now)


def test_steps_are_timed_between_results_unless_a_prompt_came_between(monkeypatch):
    clock, pace, seen = Clock(monkeypatch), Pace(NODES - 1), []
    monkeypatch.setattr(pace._width, "observe", lambda *step: seen.append(step))

    def launched(now, width):
        clock.now = now
        pace.launched(width)

    def processed(now, *counts):
        clock.now = now
        pace.processed(counts)

    launched(1.0, 0)
    processed(1.01, 1)  # alone: from its launch
    launched(5.0, None)
    launched(5.0, None)
    launched(5.1, 15)
    processed(5.2, 4)  # prompts take a part of this time
    launched(5.19, 0)
    processed(5.25, 1, 1)  # launched before the result of the last
    assert [(width, counts) for width, counts, _ in seen] == [(0, (1,)), (0, (1, 1))]
    assert [round(seconds, 6) for *_, seconds in seen] == [0.01, 0.05]


def test_searches_are_as_rare_as_their_price_asks_for():
    price = SearchPrice()
    assert price.rest(16) == 1
    for _ in range(100):
        price.observe(16, 0.0100, searched=False)
        price.observe(16, 0.0105, searched=True)
        price.observe(1, 0.0021, searched=False)
        price.observe(1, 0.0021, searched=True)
        price.observe(64, 0.010, searched=False)
        price.observe(64, 0.019, searched=True)
    assert price.rest(16) == pytest.approx(0.05 / SEARCH_SHARE, abs=1)
    assert (price.rest(1), price.rest(64)) == (1, LONGEST_REST)


def test_plain_steps_are_preferred_though_one_between_drafts_takes_long(monkeypatch):
    """As on an H200: a plain step takes 2 ms, but 4.4 ms after a step with drafts, whose tokens the
    host waits for; steps with drafts take 4.5 ms."""
    clock, pace, launched = Clock(monkeypatch), Pace(NODES - 1), []
    for _ in range(300):
        width, rests = (0, None) if pace.rests() else pace.choose(1, accepted_at([0.3]))
        after_drafts = not launched or launched[-1] > 0
        pace.launched(width, rests)
        clock.now += 0.0045 if width else 0.0044 if after_drafts else 0.002
        pace.processed([1])
        launched.append(width)
    assert sum(width == 0 for width in launched[100:]) > 180


class Relay:
    """SGLang's FutureMap."""

    needs_cpu_seq_lens = True

    def __init__(self):
        self.waited = 0

    def resolve_seq_lens_cpu(self, batch):
        self.waited += self.needs_cpu_seq_lens
        exact = torch.tensor([each.kept for each in batch.reqs])
        batch.seq_lens = exact
        batch.seq_lens_cpu = exact if self.needs_cpu_seq_lens else None


def test_the_host_waits_only_for_lengths_that_it_does_not_know():
    relay, a, b = resolve_known_lengths(Relay()), request("a", 1), request("b", 2)
    a.kept, b.kept = 7, 9
    batch = batch_of(a, b)
    steps.know_lengths([a], [7])
    assert known_lengths([a, b]) is None
    relay.resolve_seq_lens_cpu(batch)
    assert relay.waited == 1
    steps.know_lengths([b], [9])
    relay.resolve_seq_lens_cpu(batch)
    assert relay.waited == 1
    assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist() == [7, 9]
    assert batch.seq_lens_sum == 16
    assert relay.needs_cpu_seq_lens
    steps.know_lengths([a, b], [None, None])
    relay.resolve_seq_lens_cpu(batch)
    assert relay.waited == 2


class Draft(SimpleNamespace):
    """SGLang's NgramVerifyInput: what a step leaves to the next."""


class NgramWorker:
    """SGLang's worker around a model that writes `text`, in an engine that launches a step before
    it knows the result of the last."""

    enable_overlap = True

    def __init__(self, texts):
        self.texts, self.ran = texts, []
        self.draft_token_num = self.speculative_num_draft_tokens = NODES
        self.device, self.max_batch_size, self.topk = "cpu", PLACES, 8
        self.server_args = SimpleNamespace(tp_size=1, pp_size=1)
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.zeros(PLACES, 1))
        self.target_worker = SimpleNamespace(
            tokenizer=None, forward_batch_generation=self.plain_forward
        )
        self.model_runner = SimpleNamespace(
            model_config=SimpleNamespace(vocab_size=500, context_len=800)
        )

    def next_tokens(self, batch):
        """Of each request, by the tokens that have KV."""
        kept = batch.seq_lens.tolist()
        return [self.texts[each.rid][length] for each, length in zip(batch.reqs, kept, strict=True)]

    def plain_forward(self, batch):
        assert batch.spec_algorithm is PLAIN
        assert batch.spec_info is None
        self.check_lengths(batch)
        lengths = batch.seq_lens.tolist()
        roots = [self.texts[each.rid][n - 1] for each, n in zip(batch.reqs, lengths, strict=True)]
        assert batch.input_ids.tolist() == roots
        return SimpleNamespace(
            next_token_ids=torch.tensor(self.next_tokens(batch)),
            logits_output=SimpleNamespace(next_token_logprobs=torch.zeros(len(batch.reqs))),
            can_run_cuda_graph=True,
        )

    def check_lengths(self, batch):
        """The host's are the device's, or at most as much more as two steps add."""
        more = (batch.seq_lens_cpu - batch.seq_lens).tolist()
        assert min(more) >= 0
        assert max(more) <= (2 * NODES if self.chains else 0)

    def forward_batch_generation(self, batch):
        count, nodes = len(batch.reqs), self.draft_token_num
        if self.chains:
            self.chains.verify_input(self, batch)
            assert batch.forward_mode == "verify"
            places = batch.spec_info.positions.view(count, nodes)
            assert (places[:, 0] == batch.seq_lens).all()
            tokens = batch.input_ids.numpy()
            mask = np.tile(np.tri(nodes, dtype=bool).flatten(), count)
        else:
            tokens, mask = self._prepare_draft_tokens(batch)
        trees = zip(
            batch.reqs,
            batch.seq_lens.tolist(),
            tokens.reshape(count, nodes).tolist(),
            mask.reshape(count, nodes, nodes),
            strict=True,
        )
        accepted = [self.verified(*each) for each in trees]
        rows = torch.tensor([[*each, *[-1] * (nodes - len(each))] for each in accepted])
        counts = torch.tensor([len(each) for each in accepted])
        self._update_ngram_corpus(batch)
        lengths = batch.seq_lens + counts
        following = Draft(
            draft_token_num=nodes,
            accept_tokens=rows.flatten(),
            accept_lens=counts,
            new_seq_lens=lengths,
        )
        return SimpleNamespace(
            next_token_ids=rows.flatten(),
            accept_lens=counts,
            new_seq_lens=lengths,
            next_draft_input=following,
            speculative_num_draft_tokens=self.speculative_num_draft_tokens,
        )

    def verified(self, request, kept, tokens, mask):
        text, found, node = self.texts[request.rid], [], 0
        assert tokens[0] == text[kept]  # the root, which the scheduler may not know yet
        while node is not None:
            found.append(text[kept + len(found) + 1])
            depth = len(found)
            node = next(
                (
                    child
                    for child in range(1, len(tokens))
                    if mask[child].sum() == depth + 1
                    and mask[child][node]
                    and tokens[child] == found[-1]
                ),
                None,
            )
        return found


class Worker(WorkerDrafts, NgramWorker):
    def __init__(self, texts, seconds, *, on_device):
        super().__init__(texts)
        self.start_drafts()
        if on_device:
            self.topk, self.tree_mask_batch = 1, [None] * (PLACES + 1)
            self.chains = chains_of(self)
        self._sizes = {
            width: steps.Size(
                {"draft_token_num": width + 1, "speculative_num_draft_tokens": width + 1}, {}
            )
            for width in self.pace.widths[:-1]
        }
        self.seconds = seconds

    def step(self, batch):
        result = self.run_step(
            batch, None, lambda: super(Worker, self).forward_batch_generation(batch)
        )
        self.ran.append(result.speculative_num_draft_tokens - 1)
        assert result.next_draft_input.draft_token_num == NODES
        assert len(result.next_draft_input.accept_tokens) == NODES * len(batch.reqs)
        return result


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's modules that a plain step imports."""
    ngram = types.ModuleType("sglang.srt.speculative.ngram_worker")
    ngram.record_stream_for_v2_verify = lambda *_: None
    ngram.assign_extend_cache_locs_func = lambda **options: options["start_offset"]
    found = {
        ngram.__name__: ngram,
        "sglang.srt.managers.scheduler": SimpleNamespace(GenerationBatchResult=SimpleNamespace),
        "sglang.srt.speculative.ngram_info": SimpleNamespace(NgramVerifyInput=Draft),
        "sglang.srt.speculative.spec_info": SimpleNamespace(
            SpeculativeAlgorithm=SimpleNamespace(NONE=PLAIN)
        ),
        "sglang.srt.speculative": SimpleNamespace(ngram_worker=ngram),
        "sglang.srt.model_executor.forward_batch_info": SimpleNamespace(
            ForwardMode=SimpleNamespace(TARGET_VERIFY="verify")
        ),
        "sglang.srt.model_executor": types.ModuleType("model_executor"),
        **{name: types.ModuleType(name) for name in ("sglang", "sglang.srt")},
        "sglang.srt.managers": types.ModuleType("managers"),
    }
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(current_stream=int))


def served(worker, requests, clock, tokens=300):
    """SGLang's loop with overlap scheduling: a step is launched, then the last one's processed."""
    relay, queue = resolve_known_lengths(Relay()), []
    arrivals, running = dict(requests), []

    def process(batch, result):
        counts, stride = result.accept_lens.tolist(), result.speculative_num_draft_tokens
        clock.now += worker.seconds(len(batch), stride - 1)
        worker.on_verify_complete_cpu([each - 1 for each in counts], batch_size=len(batch))
        rows = result.next_token_ids.tolist()
        for i, each in enumerate(batch):
            each.output_ids += rows[i * stride : i * stride + counts[i]]

    step = 0
    while arrivals or running:
        if step in arrivals:
            new = arrivals.pop(step)
            batch = batch_of(new, decode=False)
            new.kept = len(new.origin_input_ids)
            batch.seq_lens = batch.seq_lens_cpu = torch.tensor([new.kept])
            first = worker.texts[new.rid][new.kept]
            worker.run_step(
                batch,
                None,
                lambda first=first: SimpleNamespace(next_token_ids=torch.tensor([first])),
            )
            if queue:
                process(*queue.pop())
            new.output_ids.append(first)
            running.append(new)
        running = [each for each in running if len(each.output_ids) < tokens]
        if not running:
            step += 1
            continue
        batch = batch_of(*running)
        batch.return_logprob = False
        batch.spec_algorithm = batch.spec_info = batch.input_ids = batch.out_cache_loc = None
        batch.seq_lens_sum = None
        batch.req_to_token_pool = SimpleNamespace(req_to_token=None)
        relay.resolve_seq_lens_cpu(batch)
        worker.check_lengths(batch)
        result = worker.step(batch)
        for each, count in zip(running, result.accept_lens.tolist(), strict=True):
            each.kept += count
        if queue:
            process(*queue.pop())
        queue.append((list(running), result))
        step += 1
    return relay.waited


def text_of(name, prompt, copies):
    """A prompt and an answer that copies from it, or does not."""
    chosen = random.Random(name)
    answer = []
    while len(answer) < 400:
        if chosen.random() < copies:
            start = chosen.randrange(len(prompt) - 60)
            answer += prompt[start : start + 60]
        else:
            answer += [chosen.randrange(200, 500) for _ in range(20)]
    return [*prompt, *answer]


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("copies", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("found_on", ["host", "device"])
def test_all_tokens_are_the_models_in_steps_of_every_size(copies, found_on, monkeypatch):
    if found_on == "device":
        pytest.importorskip("triton", reason="triton is not installed")
        monkeypatch.setenv("GRAFT_DOCUMENTS", "0")
    generator = np.random.default_rng(0)
    prompts = {name: generator.integers(0, 200, 300).tolist() for name in "abc"}
    texts = {name: text_of(name, prompt, copies) for name, prompt in prompts.items()}
    worker = Worker(
        texts,
        lambda count, width: 0.01 * (1 + 0.3 * (width > 0) + 0.01 * count * width),
        on_device=found_on == "device",
    )
    requests = {
        step: request(name, place, prompts[name])
        for place, (step, name) in enumerate([(0, "a"), (40, "b"), (50, "c")])
    }
    tokens = 300 if found_on == "host" else 100  # interpreted kernels take long
    waited = served(worker, requests, Clock(monkeypatch), tokens)
    for each in requests.values():
        start = len(prompts[each.rid])
        assert each.output_ids == texts[each.rid][start : start + len(each.output_ids)]
    drafted = sum(width > 0 for width in worker.ran)
    if copies:
        assert drafted > 0.1 * len(worker.ran)
        assert len(worker.ran) < 0.75 * 3 * tokens
    else:
        assert drafted < 0.1 * len(worker.ran)
    assert not waited or (found_on == "host" and (copies or waited < 0.15 * len(worker.ran)))


def test_no_drafts_reach_beyond_the_context():
    """Pages of FlashAttention's table that are beyond it belong to the next request."""
    worker, running = Worker({}, None, on_device=False), request("a", 0, range(300))
    worker.trees.expected = lambda *_, **__: accepted_at([0.9])
    drafted = {}
    for length in (300, 801 - NODES):
        batch = batch_of(running)
        batch.seq_lens_cpu = torch.tensor([length])
        steps.know_lengths([running], [length])
        drafted[length], _ = worker._draft_tokens(batch)
    assert drafted[300] > 0
    assert drafted[801 - NODES] == 0


def test_steps_keep_one_size_where_sglangs_options_need_it(monkeypatch):
    made = SimpleNamespace(mambaish_config=lambda config: config)
    monkeypatch.setitem(sys.modules, "sglang.srt.configs.hybrid_arch", made)
    monkeypatch.setattr(steps, "_size", lambda _, nodes: nodes)

    def sizes(recurrent=None, **options):
        worker = SimpleNamespace(
            server_args=SimpleNamespace(**{"pp_size": 1} | options),
            model_runner=SimpleNamespace(model_config=recurrent),
        )
        return sizes_of(worker, [0, 3])

    assert sizes() == {0: 1, 3: 4}
    assert sizes(enable_lora=False) == {0: 1, 3: 4}
    assert not sizes(pp_size=2)
    assert not sizes(enable_lora=True)
    assert not sizes(recurrent=object())
