"""`graft run`, `chat` and `ask` with the loaded model of a `graft serve` on this machine.

Imports no torch.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from http.client import HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from graft import __version__
from graft.cli.answer import Answer
from graft.cli.documents import report_selection
from graft.cli.options import AnswerOptions, ModelOptions
from graft.cli.show import Spinner, end_line, footer, prompt_parts, token_printer
from graft.errors import InputError
from graft.server.announce import RunningServer, running_servers, withdraw

if TYPE_CHECKING:
    from graft import SamplingParams
    from graft.cli.ask import AskOptions
    from graft.documents import Document

OTHER_OPTIONS = ("model", "kv_cache")  # the weights are compared; memory changes no answer
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "max_tokens", "seed",
)  # fmt: skip
RETRIEVAL = ("policy", "threshold", "thresholds", "passages", "rounds", "family")
HEALTH_SECONDS = 2.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


def options_of(options: ModelOptions, context: str) -> dict[str, Any]:
    """The options that a command and a server must share to give the same answers."""
    names = [each.name for each in fields(ModelOptions) if each.name not in OTHER_OPTIONS]
    return {"context": context, **{name: getattr(options, name) for name in names}}


def run_on_server(
    question: str,
    documents: "list[Document]",
    params: "SamplingParams",
    options: AnswerOptions,
    *,
    color: bool,
) -> bool:
    """Print the answer of a running server with this model and these options; False, with nothing
    printed, if there is none or it does not accept the request."""
    server = find_server(options, options.context if options.doc else None)
    if server is None:
        return False

    def report(selection: Any) -> None:  # noqa: ANN401 (of JSON, as a DocumentPrompt)
        shown: Any = server  # it has the engine's model_name and context_length
        report_selection(selection, shown, documents, auto=options.context == "auto")

    body = request_body([{"role": "user", "content": question}], params, trace=color)
    reader = Reader(server, token_printer(color=color), report)
    given = reader.answer({**body, "documents": _as_fields(documents)})
    if given is None:
        return False
    end_line(given.result.text)
    footer(given, color=color, server=server.url)
    return True


def ask_on_server(
    question: str, params: "SamplingParams", options: "AskOptions", *, paths: list[str]
) -> bool:
    """As `run_on_server`, with the retrieval options of `graft ask` over documents."""
    server = find_server(options, None, any_draft=True)
    documents = _documents(paths) if server else None
    if not server or not documents:
        return False
    retrieval = {name: getattr(options, name) for name in RETRIEVAL}
    body = request_body([{"role": "user", "content": question}], params)
    body |= {"documents": _as_fields(documents), "retrieval": retrieval}
    body["speculative"] = {"method": options.draft}
    if options.max_tokens is None:  # the family's
        del body["max_tokens"]
    given = Reader(server, token_printer(color=False), lambda selection: None).answer(body)
    if given is None:
        return False
    end_line(given.result.text)
    _ask_footer(given, server)
    return True


def _documents(paths: list[str]) -> "list[Document] | None":
    """The documents of a corpus; None if it has other records, or was built."""
    from graft.documents.records import read_records
    from graft.rag.corpora.named import is_built

    if any(map(is_built, paths)):
        return None
    with Spinner("reading the corpus"):
        found = [record.document for record in read_records(paths)]
    documents = [each for each in found if each]
    return documents if len(documents) == len(found) else None


def _ask_footer(given: Answer, server: RunningServer) -> None:
    from rich.console import Console

    stats: Any = given.result.stats
    searches = sum(each["query"] is not None for each in stats.rounds)
    parts = [
        f"{len(stats.rounds)} rounds, {searches} searches",
        f"{stats.tokens} tokens, {stats.tokens_per_step:.2f} per step",
        *prompt_parts(stats),
        f"total {given.total_seconds:.2f} s",
        f"by the server at {server.url}",
    ]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(" · ".join(parts), style="dim", markup=False)


def whole_prompt(
    server: RunningServer,
    question: str,
    documents: "list[Document]",
    params: "SamplingParams",
    document_tokens: int | None,
) -> list[dict[str, str]] | None:
    """The first messages of a chat; None if only passages of the documents fit, or if the server
    does not say."""
    from graft.documents.prompt import document_messages

    messages = document_messages(question, documents)
    try:
        body = json.dumps({"messages": messages}).encode()
        with open_url(server, "/tokenize", body) as response:
            count = json.load(response)["count"]
    except (OSError, HTTPException, ValueError):
        return None
    context = server.context_length
    limit = context - min(params.max_tokens, context // 2)
    if documents and document_tokens:
        limit = min(limit, document_tokens)
    return messages if count <= limit else None


def request_body(
    messages: list[dict[str, str]], params: "SamplingParams", *, trace: bool = False
) -> dict[str, Any]:
    """A streamed chat without the server's own corpus."""
    return {
        "messages": messages,
        "corpora": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": {"trace": trace},
        "stop": list(params.stop) or None,
        **{name: getattr(params, name) for name in SAMPLING},
    }


def _as_fields(documents: "list[Document]") -> list[dict[str, Any]]:
    return [
        {"title": each.name, "text": each.text, "pages": list(each.pages) or None}
        for each in documents
    ]


def find_server(
    options: ModelOptions, context: str | None, *, any_draft: bool = False
) -> RunningServer | None:
    """A running server that gives the answers of these options; `context` is None if its choice has
    no effect, `any_draft` if a request names the drafter."""
    wanted = options_of(options, context or "")
    if context is None:
        del wanted["context"]
    if any_draft:
        del wanted["draft"]
    candidates = [
        each
        for each in running_servers()
        if each.version == __version__
        and wanted.items() <= each.options.items()
        and not (each.needs_key and not _key())
    ]
    if not candidates or options.verifier != "walk":
        return None
    from graft.models.checkpoints.pretrained import DEFAULT_MODEL, locate

    fingerprint = locate(options.model or DEFAULT_MODEL).fingerprint
    same = (each for each in candidates if each.fingerprint == fingerprint)
    return next((each for each in same if _is_healthy(each)), None)


def _is_healthy(server: RunningServer) -> bool:
    """Whether the server answers; the file of one that is gone is removed."""
    try:
        with open_url(server, "/health", timeout=HEALTH_SECONDS) as response:
            health = json.load(response)
    except ConnectionRefusedError:
        health = {}
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError):
            return False  # busy, or shutting down
        health = {}
    except (OSError, HTTPException, ValueError):
        return False
    if health.get("instance") == server.instance:
        return True
    withdraw(server)
    return False


def open_url(
    server: RunningServer, path: str, body: bytes | None = None, timeout: float | None = None
) -> HTTPResponse:
    """The response of a server, with the key of the environment."""
    headers = {"Content-Type": "application/json"}
    if server.needs_key:
        headers["Authorization"] = f"Bearer {_key()}"
    request = urllib.request.Request(server.url + path, body, headers)  # noqa: S310 (http)
    return OPENER.open(request, timeout=timeout)


def _key() -> str:
    return os.environ.get("GRAFT_API_KEY", "").partition(",")[0]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a streamed answer, showing tokens and the selected passages as they arrive."""

    server: RunningServer
    show: Callable[[Any], None]
    report: Callable[[Any], None] = lambda selection: None

    def answer(self, body: dict[str, Any]) -> Answer | None:
        """The answer to a request; None if the server does not accept it, InputError if it ends
        early."""
        try:
            response = open_url(self.server, "/v1/chat/completions", json.dumps(body).encode())
        except (OSError, HTTPException):  # too long, busy or gone: the model is loaded here
            return None
        with response:
            return self._read(response)

    def _read(self, response: HTTPResponse) -> Answer:
        began, first, texts, last = time.perf_counter(), 0.0, [], {}
        rounds: list[dict[str, Any]] = []
        spinner = Spinner("prefill")
        try:
            for chunk in self._chunks(response, spinner):
                spinner.stop()
                first = first or time.perf_counter() - began
                if selected := chunk.get("documents"):
                    self.report(_namespace(selected))
                texts += [self._piece(choice) for choice in chunk["choices"]]
                for choice in chunk["choices"]:
                    rounds += choice.get("retrieval", {}).get("rounds", [])
                last = chunk
        except (OSError, HTTPException):
            last = {}
        finally:
            spinner.stop()
        if "metrics" not in last:
            raise self._failed("it ended during the answer")
        stats = SimpleNamespace(**_stats(last), rounds=rounds)
        result: Any = SimpleNamespace(text="".join(texts), stats=stats, promise=0)
        return Answer(self.server.options["draft"], result, first, time.perf_counter() - began)

    def _chunks(self, response: HTTPResponse, spinner: Spinner) -> Iterator[dict[str, Any]]:
        for line in response:
            if line.startswith(b": "):
                spinner.update(line[2:].decode().strip())
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise self._failed(chunk["error"]["message"])
            yield chunk

    def _piece(self, choice: dict[str, Any]) -> str:
        text = choice["delta"].get("content") or ""
        [trace] = choice.get("trace") or [{}]
        self.show(SimpleNamespace(text=text, source=trace.get("source") or ""))
        return text

    def _failed(self, why: str) -> InputError:
        return InputError(f"the server at {self.server.url} failed: {why}; try --no-server")


def _namespace(fields: dict[str, Any]) -> Any:  # noqa: ANN401
    passages = [SimpleNamespace(**each) for each in fields["passages"]]
    return SimpleNamespace(**{**fields, "passages": passages})


def _stats(chunk: dict[str, Any]) -> dict[str, Any]:
    """The fields of Stats that footers have."""
    usage, metrics = chunk["usage"], chunk["metrics"]
    seconds, tokens = metrics["decode_seconds"], usage["completion_tokens"]
    return dict(
        tokens=tokens,
        tokens_per_second=(tokens - 1) / seconds if seconds > 0 else 0.0,
        tokens_per_step=metrics["speculative_decoding"]["mean_acceptance_length"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        approximate_tokens=0,
        prefill_seconds=metrics["prefill_seconds"],
        accepted_by_source=metrics["accepted_by_source"],
        inner_drafted_by_source={},
        inner_accepted_by_source={},
    )
