"""`vllm bench serve` as it is, against our server: `make test-vllm-bench VLLM_PYTHON=...`."""

import json
import os
import subprocess

import pytest
from serving import serving
from tiny import save_tiny, tiny_engine

# What `vllm bench serve` runs; the command itself asks for a distribution named vllm, and builds
# for CPUs are named otherwise.
BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
PYTHON = os.environ.get("GRAFT_VLLM_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="GRAFT_VLLM_PYTHON names no interpreter that has vLLM")
@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [
        ("openai", "/v1/completions"),
        ("openai-chat", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
    ],
)
def test_vllm_bench_works_unchanged_and_shows_acceptance(tmp_path, backend, endpoint):
    save_tiny(tmp_path)
    with serving(tiny_engine(max_batch=4, default_draft="copy")) as running:
        done = subprocess.run(
            [PYTHON, "-c", BENCH, "--backend", backend, "--endpoint", endpoint,
             "--base-url", running.url, "--model", "tiny", "--tokenizer", str(tmp_path),
             "--dataset-name", "random", "--random-input-len", "40", "--random-output-len", "60",
             "--num-prompts", "8", "--max-concurrency", "4", "--temperature", "0",
             "--ignore-eos", "--save-result", "--result-dir", str(tmp_path),
             "--result-filename", "result.json"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Speculative Decoding" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (8, 0)
    assert result["spec_decode_num_drafts"] > 0
    assert result["spec_decode_draft_tokens"] >= result["spec_decode_accepted_tokens"] > 0
    assert result["spec_decode_acceptance_length"] > 1
    assert result["median_ttft_ms"] > 0
    assert result["total_output_tokens"] == 8 * 60
