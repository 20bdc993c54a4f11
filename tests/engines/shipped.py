"""The model and the text of the tests in real engines."""

from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "examples" / "service_agreement.md").read_text(
    encoding="utf-8"
)


def model_folder() -> Path:
    """The folder that `make setup` converted, in the cache that GRAFT_HOME or the user has."""
    from graft.home import home

    found = sorted((home() / "models").glob("SmolLM2-135M-Instruct*/config.json"))
    if not found:
        pytest.skip("smollm2-135m is not in the cache; run make setup")
    return found[0].parent


def question_tokens(tokenizer, text: str, question: str) -> list[int]:
    """A question about a text, as the model's chat template has it."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{text}\n\n{question}"}],
        add_generation_prompt=True,
        return_dict=False,
    )
