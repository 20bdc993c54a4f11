"""MT-Bench-101 (Bai et al. 2024) in a long chat history, as RAPID (Chen et al. 2025) builds it.

Of the first 100 dialogues the last turn is asked; the turns before it are spread, in order and at
equal distances, over the turns of the 500 dialogues that follow in the file. With them the history
has about 130K tokens; `--context` cuts those other turns, never the dialogue's own. A category is a
task of the set, such as GR (reasoning). RAPID lets a judge model mark the replies; here they are
compared with the set's own by ROUGE-L-Sum.
"""

from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Planted, Prompt, chat
from graft.errors import InputError

SOURCE = Source(
    suite="dialogue",
    owner="MT-Bench-101",
    names=("mtbench101.jsonl",),
    row="a dialogue of MT-Bench-101 (task, history of user and bot)",
)
MAX_TOKENS = 256
ASKED, OTHERS = 100, 500  # dialogues
Turn = tuple[str, str]  # user, bot
Dialogue = tuple[str, list[Turn]]  # task, turns


def read(data: Path | None) -> list[Prompt]:
    """The first dialogues, the turns of the following ones around theirs."""
    dialogues = SOURCE.lines(data, _dialogue)
    if len(dialogues) < ASKED + OTHERS:
        raise InputError(
            f"{SOURCE.find(data)} has {len(dialogues)} dialogues, but {ASKED + OTHERS} are needed: "
            "take the whole file"
        )
    others = dialogues[ASKED : ASKED + OTHERS]
    document = "\n\n".join(_shown(*turn) for _, turns in others for turn in turns)
    return [
        _prompt(number, task, turns, document)
        for number, (task, turns) in enumerate(dialogues[:ASKED], 1)
    ]


def _dialogue(row: dict[str, Any]) -> Dialogue:
    turns = [(text(turn, "user").strip(), text(turn, "bot").strip()) for turn in row["history"]]
    if not turns:
        raise ValueError("history")
    return text(row, "task"), turns


def _shown(user: str, bot: str) -> str:
    """One paragraph, so that nothing is planted within a turn."""
    lines = [f"User: {user}", f"Assistant: {bot}"]
    return "\n".join(line for part in lines for line in part.split("\n") if line.strip())


def _prompt(number: int, task: str, turns: list[Turn], document: str) -> Prompt:
    *before, (last, reply) = turns
    planted = tuple(
        Planted(place / (len(before) + 1), _shown(*turn)) for place, turn in enumerate(before, 1)
    )
    content = (
        f"This is our conversation so far.\n\n{document}\n\nThe conversation so far ends here. "
        f"Write the assistant's reply to what the user says next.\n\nUser: {last}"
    )
    return Prompt(number, task, chat(content), document, Gold("rouge", (reply,)), planted=planted)
