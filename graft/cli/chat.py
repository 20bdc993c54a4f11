"""`graft chat`: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graft.cli.answer import answer
from graft.cli.documents import fitted, keep_documents, say_selection
from graft.cli.failures import one_line
from graft.cli.options import AnswerOptions, takes_options
from graft.cli.show import end_line, footer, token_printer
from graft.errors import GraftError

if TYPE_CHECKING:
    from graft import DocumentPrompt, Engine, SamplingParams
    from graft.documents import Document

HELP = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer."


@takes_options
def chat(
    *,
    options: AnswerOptions,
    color: Annotated[
        bool, typer.Option("--color", help="Colour tokens by where the guess came from.")
    ] = False,
) -> None:
    """Talk with a model, about documents if any are given.

    Of documents that are longer than the model reads, passages are selected for the first
    question; later questions keep them, and after /reset they are selected anew.
    """
    # What can be refused without a model is refused before one is loaded.
    documents, params = options.documents(), options.sampling()
    conversation = Conversation(options, options.load(), params, documents)
    print(HELP, file=sys.stderr)
    while (line := read_line()) is not None:
        if line == "/exit":
            break
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            conversation.turn(line, color=color)


class Conversation:
    """The messages so far and the engine that continues them; a failed turn leaves no trace."""

    def __init__(
        self,
        options: AnswerOptions,
        engine: "Engine",
        params: "SamplingParams",
        documents: "list[Document]",
    ) -> None:
        self.options = options
        self.engine = engine
        self.params = params
        self.documents = documents
        self.messages: list[dict[str, str]] = []
        self.opening: DocumentPrompt | None = None  # of the first turn, documents and all

    def reset(self) -> None:
        """Forget every turn; the documents stay."""
        self.messages = []

    def turn(self, question: str, *, color: bool) -> None:
        """Answer one question; Ctrl-C ends the answer and keeps what was written, if anything."""
        written: list[str] = []
        show = token_printer(color=color)
        try:
            messages = [*self.messages, *self._asked(question)]
            given = answer(
                self.engine,
                messages,
                self.params,
                self.options.draft,
                lambda event: (written.append(event.text), show(event)),
            )
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            if not written:
                return
            reply = "".join(written)
        except GraftError as error:
            print(f"error: {one_line(error)}; /reset starts again", file=sys.stderr)
            return
        else:
            reply = given.result.text
            end_line(reply)
            footer(given, color=color)
            if not self.messages and self.options.cache:
                keep_documents(self.engine, self.opening)
        self.messages = [*messages, {"role": "assistant", "content": reply}]

    def _asked(self, question: str) -> list[dict[str, str]]:
        if self.messages:
            return [{"role": "user", "content": question}]
        free = self.engine.context_length // 4
        prompt = fitted(
            self.engine,
            question,
            self.documents,
            self.params,
            full=self.options.full,
            keep_free=free,
        )
        say_selection(prompt, self.engine, self.documents)
        self.opening = prompt
        return prompt.messages


def read_line() -> str | None:
    """The next line typed; None at the end of input; Ctrl-C on an empty prompt does nothing."""
    from rich.console import Console

    # The prompt goes to stderr, so that a piped conversation leaves only answers on stdout.
    console = Console(stderr=True)
    if sys.stdin.isatty():
        import readline  # noqa: F401 (gives input() its line editing and history)
    while True:
        try:
            console.print("[bold]>[/bold] ", end="")
            return input().strip()
        except EOFError:
            console.print()
            return None
        except KeyboardInterrupt:
            console.print()
