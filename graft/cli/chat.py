"""`graft chat`: a conversation in the terminal."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graft.cli.answer import Answer, answer
from graft.cli.documents import fit_documents, keep_documents, report_selection
from graft.cli.failures import one_line
from graft.cli.options import COLOR, SERVER, AnswerOptions, AnswerPool, takes_options
from graft.cli.show import end_line, footer, token_printer
from graft.errors import GraftError

if TYPE_CHECKING:
    from graft import DocumentPrompt, Engine, SamplingParams
    from graft.decode.output import TokenEvent
    from graft.documents import Document
    from graft.server.announce import RunningServer

KEPT = "later questions use the same passages; /reset selects new ones"
HELP = "/reset starts a new conversation, /exit, /quit or Ctrl-D ends it, Ctrl-C stops an answer."


@dataclass(frozen=True, kw_only=True)
class ChatOptions(AnswerOptions, AnswerPool):
    """The options of `chat`."""


@takes_options
def chat(
    *,
    options: ChatOptions,
    color: COLOR = False,
    server: SERVER = True,
) -> None:
    """Chat with a model, about documents if any are given.

    If the documents are longer than the model's context, the first question selects passages;
    later questions use the same passages, until /reset.

    Example: graft chat --doc examples/service_agreement.md
    """
    # Wrong options are refused before torch is imported and a model is loaded.
    options.check()
    options.pool_options()
    conversation = Conversation(options, options.sampling(), options.documents())
    if not (server and options.pool == "off" and conversation.find_server()):
        conversation.load()
    print(HELP, file=sys.stderr)
    while (line := read_line()) is not None:
        if line in ("/exit", "/quit"):
            break
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            conversation.turn(line, color=color)


@dataclass(slots=True)
class Conversation:
    """The messages so far, and the server or engine that continues them; a failed turn changes
    nothing."""

    options: ChatOptions
    params: "SamplingParams"
    documents: "list[Document]"
    server: "RunningServer | None" = None
    engine: "Engine | None" = None
    messages: list[dict[str, str]] = field(default_factory=list)
    first_prompt: "DocumentPrompt | None" = None  # with the documents

    def find_server(self) -> bool:
        """Whether a running server continues the conversation."""
        from graft.cli.resident import find_server

        self.server = find_server(self.options, self.options.context if self.documents else None)
        return self.server is not None

    def load(self) -> "Engine":
        """The model, which continues the conversation from now on."""
        self.server = None
        if self.engine is None:
            self.engine = self.options.load(pool=self.options.pool_options())
        return self.engine

    def reset(self) -> None:
        """Drop all messages; the documents stay."""
        self.messages = []

    def turn(self, question: str, *, color: bool) -> None:
        """Answer one question; Ctrl-C ends the answer and keeps the text generated so far."""
        pieces: list[str] = []
        printed = token_printer(color=color)

        def show(event: "TokenEvent") -> None:
            pieces.append(event.text)
            printed(event)

        try:
            messages = [*self.messages, *self._new_messages(question)]
            given = self._answer(messages, show, color=color)
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            if not pieces:
                return
            reply = "".join(pieces)
        except GraftError as error:
            print(f"error: {one_line(error)}; /reset starts a new conversation", file=sys.stderr)
            return
        else:
            reply = given.result.text
            end_line(reply)
            self._finish(given, color=color)
        self.messages = [*messages, {"role": "assistant", "content": reply}]

    def _answer(
        self, messages: list[dict[str, str]], show: Callable[[Any], None], *, color: bool
    ) -> Answer:
        """The server's answer; the model's if there is none or it does not accept the request."""
        if self.server:
            from graft.cli.resident import Reader, request_body

            body = request_body(messages, self.params, trace=color)
            if given := Reader(self.server, show).answer(body):
                return given
        return answer(self.load(), messages, self.params, self.options.draft, show)

    def _finish(self, given: Answer, *, color: bool) -> None:
        """Print the footer; after the first turn, keep the documents' KV cache on disk."""
        first = not self.messages
        if self.server:
            footer(given, color=color, server=self.server.url)
            return
        engine = self.load()
        footer(given, color=color, load_seconds=engine.load_seconds if first else 0.0)
        if first and self.options.cache and self.first_prompt:
            keep_documents(engine, self.first_prompt)

    def _new_messages(self, question: str) -> list[dict[str, str]]:
        if self.messages:
            return [{"role": "user", "content": question}]
        if self.server:
            from graft.cli.resident import whole_prompt

            tokens = self.options.document_tokens()
            whole = whole_prompt(self.server, question, self.documents, self.params, tokens)
            if whole:
                return whole
        engine = self.load()  # it selects passages and leaves some of the context free
        prompt = fit_documents(
            engine,
            question,
            self.documents,
            self.params,
            full=self.options.full,
            document_tokens=self.options.document_tokens(),
            keep_free=engine.context_length // 4,
        )
        report_selection(prompt, engine, self.documents, auto=bool(self.options.document_tokens()))
        if not prompt.whole:
            print(KEPT, file=sys.stderr)
        self.first_prompt = prompt
        return prompt.messages


def read_line() -> str | None:
    """The next line of input, None at its end; Ctrl-C shows the prompt again."""
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
