"""`graft run` with the loaded model of a `graft serve` on this machine; imports no torch."""

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
from graft.cli.show import Spinner, end_line, footer, token_printer
from graft.errors import InputError
from graft.server.announce import RunningServer, running_servers, withdraw

if TYPE_CHECKING:
    from graft import SamplingParams
    from graft.documents import Document

OTHER_OPTIONS = ("model", "kv_cache")  # the weights are compared; memory changes no answer
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "max_tokens", "seed",
)  # fmt: skip
HEALTH_SECONDS = 2.0
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


def options_of(options: ModelOptions, context: str) -> dict[str, Any]:
    """The options that `graft run` and a server must share to give the same answers."""
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
    server = find_server(options)
    if server is None:
        return False
    body = {
        "messages": [{"role": "user", "content": question}],
        "documents": [
            {"title": each.name, "text": each.text, "pages": list(each.pages) or None}
            for each in documents
        ],
        "corpora": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": {"trace": color},
        "stop": list(params.stop) or None,
        **{name: getattr(params, name) for name in SAMPLING},
    }

    def report(selection: Any) -> None:  # noqa: ANN401 (of JSON, as a DocumentPrompt)
        shown: Any = server  # it has the engine's model_name and context_length
        report_selection(selection, shown, documents, auto=options.context == "auto")

    try:
        response = _open(server, "/v1/chat/completions", json.dumps(body).encode())
    except (OSError, HTTPException):  # too long, busy or gone: the model is loaded here
        return False
    with response:
        given = _Reader(server, token_printer(color=color), report).read(response)
    end_line(given.result.text)
    footer(given, color=color, server=server.url)
    return True


def find_server(options: AnswerOptions) -> RunningServer | None:
    """A running server that gives the answers of these options."""
    wanted = options_of(options, options.context)
    if not options.doc:  # the server's choice has no effect
        del wanted["context"]
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
        with _open(server, "/health", timeout=HEALTH_SECONDS) as response:
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


def _open(
    server: RunningServer, path: str, body: bytes | None = None, timeout: float | None = None
) -> HTTPResponse:
    headers = {"Content-Type": "application/json"}
    if server.needs_key:
        headers["Authorization"] = f"Bearer {_key()}"
    request = urllib.request.Request(server.url + path, body, headers)  # noqa: S310 (http)
    return OPENER.open(request, timeout=timeout)


def _key() -> str:
    return os.environ.get("GRAFT_API_KEY", "").partition(",")[0]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a streamed answer, showing tokens and the selected passages as they arrive."""

    server: RunningServer
    show: Callable[[Any], None]
    report: Callable[[Any], None]

    def read(self, response: HTTPResponse) -> Answer:
        """The answer; InputError if it ends early."""
        began, first, texts, last = time.perf_counter(), 0.0, [], {}
        spinner = Spinner("prefill")
        try:
            for chunk in self._chunks(response, spinner):
                spinner.stop()
                first = first or time.perf_counter() - began
                if selected := chunk.get("documents"):
                    self.report(_namespace(selected))
                texts += [self._piece(choice) for choice in chunk["choices"]]
                last = chunk
        except (OSError, HTTPException):
            last = {}
        finally:
            spinner.stop()
        if "metrics" not in last:
            raise self._failed("it ended during the answer")
        result: Any = SimpleNamespace(text="".join(texts), stats=_stats(last), promise=0)
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


def _stats(chunk: dict[str, Any]) -> Any:  # noqa: ANN401 (as Stats, for the footer)
    usage, metrics = chunk["usage"], chunk["metrics"]
    seconds, tokens = metrics["decode_seconds"], usage["completion_tokens"]
    return SimpleNamespace(
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
