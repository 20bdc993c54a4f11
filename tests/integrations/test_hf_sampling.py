"""Sampling through the drop-in: transformers' distribution, torch's seed."""

import pytest
import torch
from daily import daily
from hf_cases import SHAPES, WORDS, drafted, make
from scipy.stats import chisquare
from tiny import VOCABULARY
from transformers import LogitsProcessor, SynthIDTextWatermarkingConfig

from graft.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLED = {"do_sample": True, "max_new_tokens": 40, "temperature": 0.8, "top_k": 20}


@pytest.mark.parametrize("shape", daily(SHAPES, "ragged"))
def test_samples_repeat_with_the_seed_for_every_drafter(unchanged, shape):
    texts = []
    for seed, draft in [(1, "plain"), (1, "copy"), (1, "auto"), (2, "plain")]:
        torch.manual_seed(seed)
        texts.append(drafted(unchanged, draft, **SHAPES[shape], **SAMPLED, num_return_sequences=2))
    assert texts[0].tolist() == texts[1].tolist() == texts[2].tolist() != texts[3].tolist()
    rows = 2 * len(SHAPES[shape]["input_ids"])
    assert texts[0].shape[0] == rows
    assert len({tuple(row) for row in texts[0].tolist()}) == rows


def test_stateful_watermarks_stay_exact(made):
    mark = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 22, 33, 44])
    options = {**SAMPLED, "max_new_tokens": 24, "watermarking_config": mark, "eos_token_id": None}

    def texts(draft, inputs):
        torch.manual_seed(0)
        return drafted(made["panels"], draft, **inputs, **options).tolist()

    together = texts("copy", SHAPES["ragged"])
    assert together == texts("plain", SHAPES["ragged"])
    for row in range(3):  # in a batch of its own kind a row is what it is beside others
        alike = {k: v[row : row + 1].repeat(3, 1) for k, v in SHAPES["ragged"].items()}
        assert texts("plain", alike)[row] == together[row]


def test_samples_have_the_distribution_of_transformers():
    model = make("panels")
    prompt = torch.tensor([WORDS[0]])
    options = {"do_sample": True, "temperature": 4.0, "top_k": 8, "top_p": 0.95}
    shown = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 1}
    wanted = model.generate(prompt, **options, **shown).scores[0][0].softmax(-1)
    torch.manual_seed(0)
    drawn = drafted(model, input_ids=prompt, **options, max_new_tokens=1, num_return_sequences=400)
    counts = torch.bincount(drawn[:, -1], minlength=VOCABULARY)
    assert not counts[wanted == 0].any()
    kept = wanted > 0
    assert kept.sum() > 2
    expected = (wanted[kept] / wanted[kept].sum() * 400).numpy()
    assert chisquare(counts[kept].numpy(), expected, sum_check=False).pvalue > 1e-3


def test_greedy_search_does_not_use_torchs_generator(unchanged):
    before = torch.get_rng_state()
    drafted(unchanged, **SHAPES["one"], max_new_tokens=5, do_sample=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_processors_that_leave_no_token_are_an_error_when_sampling(unchanged):
    class Nothing(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return torch.full_like(scores, -torch.inf)

    with pytest.raises(InputError, match="leave no token"):
        drafted(unchanged, **SHAPES["one"], **SAMPLED, logits_processor=[Nothing()])
