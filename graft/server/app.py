"""The HTTP routes."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Query, Request, Response

from graft import __version__
from graft.decode.engine import Engine
from graft.documents.formats import FORMATS
from graft.documents.read import parse_document
from graft.errors import InputError, MissingDependencyError
from graft.server import chat, completions
from graft.server.errors import SERVER_ERROR, ApiError, handle_errors
from graft.server.grammar import Grammars
from graft.server.logprobs import TokenTexts
from graft.server.messages import prepare_chat
from graft.server.metrics import Metrics
from graft.server.middleware import AuthAndLimits, HostCheck
from graft.server.pages import add_pages
from graft.server.request_builder import RequestBuilder
from graft.server.responses import ResponseAnswer
from graft.server.schema import (
    AddCorpus,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    NewCorpus,
    RemoveCorpus,
    ResponsesRequest,
    TokenizeRequest,
    as_documents,
)
from graft.server.settings import ServerSettings
from graft.server.sse import JobResponse, finished
from graft.server.tenants import SHARED, Corpora, Tenants
from graft.server.worker import Job, Worker

Answer = chat.ChatAnswer | completions.CompletionAnswer | ResponseAnswer
FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
CLIENT_CLOSED_REQUEST = 499  # nginx's status code


class Server:
    """An engine, its worker, and the objects that the routes share."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        grammars, corpora = Grammars(engine), Corpora(engine, Tenants(engine), settings)
        self.builder = RequestBuilder(engine, grammars, corpora, settings)
        self.texts = TokenTexts(engine, grammars)
        self.metrics = Metrics(engine, self.builder.model_name)
        self.worker = Worker(
            engine, self.metrics, max_waiting=settings.max_waiting, timeout=settings.timeout
        )
        self.since = int(time.time())
        self.instance = secrets.token_hex(8)

    async def answer(self, request: Request, answer: Answer, sequences: int = 1) -> Any:  # noqa: ANN401
        """A stream of events if the client requests one, else the complete response."""
        job = await self.worker.open(
            lambda: answer.prepare(self.builder, _tenant(request)),
            sequences=sequences,
            streaming=answer.streaming,
        )
        return await self.respond(request, answer, job)

    async def respond(self, request: Request, answer: Answer, job: Job) -> Any:  # noqa: ANN401
        """The response of a job."""
        if answer.body.stream:
            return JobResponse(self.worker, job, answer.events(job), named=answer.named)
        events = await finished(self.worker, job, request)
        if events is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return await self.worker.run_in_thread(lambda: answer.complete(job.results, events))


def make_app(engine: Engine, settings: ServerSettings | None = None) -> FastAPI:
    """The ASGI application; `app.state.server` is its Server."""
    settings = settings or ServerSettings()
    server = Server(engine, settings)

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        server.worker.start()
        yield
        await server.worker.stop()

    # No /docs page: it loads scripts from another host.
    app = FastAPI(
        title="Graft", version=__version__, lifespan=working, docs_url=None, redoc_url=None
    )
    app.state.server = server
    app.add_middleware(
        AuthAndLimits,
        api_keys=settings.api_keys,
        max_body=settings.max_body,
        body_timeout=settings.body_timeout,
    )
    app.add_middleware(HostCheck, hosts=settings.hosts)
    handle_errors(app)
    _add_texts(app, server)
    _add_tokens(app, server)
    _add_corpora(app, server)
    _add_files(app, server)
    _add_status(app, server)
    add_pages(app)
    return app


def _tenant(request: Request) -> str:
    return request.scope["state"]["tenant"]


def _add_texts(app: FastAPI, server: Server) -> None:
    builder, name = server.builder, server.builder.model_name

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Any:  # noqa: ANN401
        """OpenAI's chat completions."""
        builder.check_model(body.model)
        answer, options = chat.ChatAnswer(body, name, server.texts), body.retrieval
        if options is None:
            return await server.answer(request, answer, builder.check_choices(body))
        job = await server.worker.open_streams(
            lambda: answer.start_rounds(options, builder, _tenant(request)), 1
        )
        return await server.respond(request, answer, job)

    @app.post("/v1/completions")
    async def complete(body: CompletionRequest, request: Request) -> Any:  # noqa: ANN401
        """OpenAI's completions."""
        builder.check_model(body.model)
        sequences = builder.check_choices(body, len(completions.prompts_of(body)))
        answer = completions.CompletionAnswer(body, name, server.texts)
        return await server.answer(request, answer, sequences)

    @app.post("/v1/responses")
    async def respond(body: ResponsesRequest, request: Request) -> Any:  # noqa: ANN401
        """OpenAI's responses."""
        builder.check_model(body.model)
        return await server.answer(request, ResponseAnswer(body, name))


def _add_tokens(app: FastAPI, server: Server) -> None:
    engine, builder = server.engine, server.builder

    def tokens_of(body: TokenizeRequest) -> list[int]:
        if body.messages is not None and body.prompt is None:
            return prepare_chat(engine, body.messages, body.tools or []).encode().tokens
        if body.prompt is None or body.messages is not None:
            raise InputError("give either prompt or messages")
        if not body.add_special_tokens or not body.prompt.strip():
            return engine.encoder.text(body.prompt)
        return engine.encoder.prompt(body.prompt).tokens

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """The token ids of a text or of a chat."""
        builder.check_model(body.model)
        tokens = await server.worker.run_in_thread(lambda: tokens_of(body))
        strings = engine.loaded.tokenizer.convert_ids_to_tokens(tokens)
        return {
            "count": len(tokens),
            "max_model_len": engine.context_length,
            "tokens": tokens,
            "token_strs": strings if body.return_token_strs else None,
        }

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        """The text of token ids."""
        builder.check_model(body.model)
        text = await server.worker.run_in_thread(
            lambda: completions.detokenized(engine, body.tokens)
        )
        return {"prompt": text}


def _add_corpora(app: FastAPI, server: Server) -> None:
    corpora = server.builder.corpora

    @app.post("/add_external_corpus")
    async def add(body: AddCorpus, request: Request) -> dict[str, Any]:
        """Add texts to draft from."""
        corpus_id, corpus = await server.worker.run_indexing(
            lambda: corpora.add(_tenant(request), body.corpus_id, as_documents(body.documents))
        )
        return {
            "success": True,
            "corpus_id": corpus_id,
            "loaded_token_count": corpus.tokens,
        }

    @app.post("/remove_external_corpus")
    async def remove(body: RemoveCorpus, request: Request) -> dict[str, Any]:
        """Remove a corpus."""
        await server.worker.run_indexing(lambda: corpora.remove(_tenant(request), body.corpus_id))
        return {"success": True}

    @app.get("/list_external_corpora")
    async def show(request: Request) -> dict[str, Any]:
        """The corpora of this key, and their numbers of tokens."""
        known = corpora.of(_tenant(request))
        return {
            "success": True,
            "corpus_token_counts": {key: corpus.tokens for key, corpus in known.items()},
        }

    def corpus_card(corpus_id: str, documents: int, tokens: int | None) -> dict[str, Any]:
        return {"id": corpus_id, "object": "corpus", "documents": documents, "tokens": tokens}

    @app.post("/v1/corpora")
    async def create(body: NewCorpus, request: Request) -> dict[str, Any]:
        """Add documents to answer and to draft from."""
        corpus_id, corpus = await server.worker.run_indexing(
            lambda: corpora.add(_tenant(request), body.id, as_documents(body.documents))
        )
        return corpus_card(corpus_id, len(corpus.index), corpus.tokens)

    @app.get("/v1/corpora")
    async def list_corpora(request: Request) -> dict[str, Any]:
        """The corpora that requests of this key may name."""
        own = corpora.of(_tenant(request)).items()
        cards = [corpus_card(key, len(each.index), each.tokens) for key, each in own]
        if corpora.shared:
            cards.insert(0, corpus_card(SHARED, len(corpora.shared), None))
        return {"object": "list", "data": cards}

    @app.delete("/v1/corpora/{corpus_id}")
    async def delete(corpus_id: str, request: Request) -> dict[str, Any]:
        """Remove a corpus."""
        await server.worker.run_indexing(lambda: corpora.remove(_tenant(request), corpus_id))
        return {"id": corpus_id, "object": "corpus", "deleted": True}


def _add_files(app: FastAPI, server: Server) -> None:
    @app.post("/v1/documents/text", openapi_extra=FILE)
    async def read(request: Request, title: str = Query(min_length=1, max_length=512)) -> Any:  # noqa: ANN401
        """The text of a file, as `documents` take it; `title` is its name. Nothing is kept."""
        data = await request.body()

        def document() -> dict[str, Any]:
            try:
                made = parse_document(data, title, server.settings.max_body)
            except MissingDependencyError as error:
                raise ApiError(f"the server cannot read this: {error}", 501) from None
            return {"title": title, "text": made.text, "pages": list(made.pages) or None}

        return await server.worker.run_indexing(document)


def _add_status(app: FastAPI, server: Server) -> None:
    def card() -> dict[str, Any]:
        return {
            "id": server.builder.model_name,
            "object": "model",
            "created": server.since,
            "owned_by": "graft",
            "root": server.builder.model_name,
            "parent": None,
            "max_model_len": server.engine.context_length,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The served model."""
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The served model, by name."""
        server.builder.check_model(name)
        return card()

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        """Presets and limits, for clients."""
        return {
            "model": server.builder.model_name,
            "version": __version__,
            "max_model_len": server.engine.context_length,
            "methods": server.builder.methods,
            "default_method": server.engine.default_draft,
            "max_document_characters": server.settings.max_document_characters,
            "max_body_bytes": server.settings.max_body,
            "formats": FORMATS,
        }

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server accepts requests."""
        if not server.worker.alive:
            raise ApiError("the server accepts no requests", 503, SERVER_ERROR)
        return {"status": "ok", "instance": server.instance}

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of Graft."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(server.metrics.exposition(), media_type="text/plain; version=0.0.4")
