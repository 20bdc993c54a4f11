"""The routes."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response

from graft import __version__
from graft.decode.engine import Engine
from graft.errors import InputError
from graft.server import chat, completions
from graft.server.asking import Asking
from graft.server.corpora import Corpora
from graft.server.failures import BROKEN, Refusal, handle_failures
from graft.server.grammar import Grammars
from graft.server.hosts import HostCheck
from graft.server.limits import Gate
from graft.server.logprobs import TokenTexts
from graft.server.messages import encode_chat
from graft.server.metrics import Metrics
from graft.server.pages import add_pages
from graft.server.responses import ResponseAnswer
from graft.server.schema import (
    AddCorpus,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    RemoveCorpus,
    ResponsesRequest,
    TokenizeRequest,
)
from graft.server.settings import ServerSettings
from graft.server.sse import JobResponse, finished
from graft.server.tenants import Tenants
from graft.server.worker import Worker

Answer = chat.ChatAnswer | completions.CompletionAnswer | ResponseAnswer
CLOSED_BY_CLIENT = 499  # nginx's number; nobody is there to read it


class Server:
    """An engine, its worker, and what routes need."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine, self.settings = engine, settings
        grammars, tenants = Grammars(engine), Tenants(engine)
        corpora = Corpora(engine, tenants, settings)
        self.asking = Asking(engine, grammars, tenants, corpora, settings)
        self.texts = TokenTexts(engine, grammars)
        self.metrics = Metrics(engine, self.asking.model_name)
        self.worker = Worker(
            engine, self.metrics, max_waiting=settings.max_waiting, timeout=settings.timeout
        )
        self.since = int(time.time())

    async def answer(self, request: Request, answer: Answer, places: int = 1) -> Any:  # noqa: ANN401
        """Its events where a stream is asked for, else the whole at the end."""
        job = await self.worker.open(
            lambda: answer.prepare(self.asking, _tenant(request)),
            places=places,
            heard=answer.heard,
        )
        if answer.asked.stream:
            return JobResponse(self.worker, job, answer.events(job), named=answer.named)
        told = await finished(self.worker, job, request)
        if told is None:
            return Response(status_code=CLOSED_BY_CLIENT)
        return answer.whole(job.results, told)


def make_app(engine: Engine, settings: ServerSettings | None = None) -> FastAPI:
    """The application around an engine; `app.state.server` is what it works with."""
    settings = settings or ServerSettings()
    server = Server(engine, settings)

    @asynccontextmanager
    async def working(app: FastAPI) -> AsyncIterator[None]:
        server.worker.start()
        yield
        await server.worker.stop()

    # No pages for /docs: they would fetch their scripts from elsewhere.
    app = FastAPI(
        title="Graft", version=__version__, lifespan=working, docs_url=None, redoc_url=None
    )
    app.state.server = server
    app.add_middleware(
        Gate,
        api_keys=settings.api_keys,
        max_body=settings.max_body,
        body_timeout=settings.body_timeout,
    )
    app.add_middleware(HostCheck, hosts=settings.hosts)
    handle_failures(app)
    _add_texts(app, server)
    _add_tokens(app, server)
    _add_corpora(app, server)
    _add_status(app, server)
    add_pages(app)
    return app


def _tenant(request: Request) -> str:
    return request.scope["state"]["tenant"]


def _add_texts(app: FastAPI, server: Server) -> None:
    asking, name = server.asking, server.asking.model_name

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, request: Request) -> Any:  # noqa: ANN401
        """Answer a chat."""
        asking.check_model(asked.model)
        answer = chat.ChatAnswer(asked, name, server.texts)
        return await server.answer(request, answer, asking.check_choices(asked))

    @app.post("/v1/completions")
    async def complete(asked: CompletionRequest, request: Request) -> Any:  # noqa: ANN401
        """Continue texts."""
        asking.check_model(asked.model)
        places = asking.check_choices(asked, len(completions.prompts_of(asked)))
        answer = completions.CompletionAnswer(asked, name, server.texts)
        return await server.answer(request, answer, places)

    @app.post("/v1/responses")
    async def respond(asked: ResponsesRequest, request: Request) -> Any:  # noqa: ANN401
        """Answer a text or a chat, the newer way."""
        asking.check_model(asked.model)
        return await server.answer(request, ResponseAnswer(asked, name))


def _add_tokens(app: FastAPI, server: Server) -> None:
    engine, asking = server.engine, server.asking

    def tokens_of(asked: TokenizeRequest) -> list[int]:
        if (asked.prompt is None) == (asked.messages is None):
            raise InputError("give either prompt or messages")
        if asked.messages is not None:
            return encode_chat(engine, asked.messages, asked.tools or []).tokens
        if not asked.add_special_tokens or not asked.prompt.strip():
            return engine.encoder.text(asked.prompt)
        return engine.encoder.prompt(asked.prompt).tokens

    @app.post("/tokenize")
    async def tokenize(asked: TokenizeRequest) -> dict[str, Any]:
        """The tokens of a text or of a chat."""
        asking.check_model(asked.model)
        tokens = await server.worker.beside(lambda: tokens_of(asked))
        strings = engine.loaded.tokenizer.convert_ids_to_tokens(tokens)
        return {
            "count": len(tokens),
            "max_model_len": engine.context_length,
            "tokens": tokens,
            "token_strs": strings if asked.return_token_strs else None,
        }

    @app.post("/detokenize")
    async def detokenize(asked: DetokenizeRequest) -> dict[str, Any]:
        """The text of tokens."""
        asking.check_model(asked.model)
        text = await server.worker.beside(lambda: completions.detokenized(engine, asked.tokens))
        return {"prompt": text}


def _add_corpora(app: FastAPI, server: Server) -> None:
    corpora = server.asking.corpora

    @app.post("/add_external_corpus")
    async def add(asked: AddCorpus, request: Request) -> dict[str, Any]:
        """Add texts to draft from."""
        corpus_id, corpus = await server.worker.behind(
            lambda: corpora.add(_tenant(request), asked.corpus_id, asked.documents)
        )
        return {
            "success": True,
            "corpus_id": corpus_id,
            "loaded_token_count": corpus.tokens,
        }

    @app.post("/remove_external_corpus")
    async def remove(asked: RemoveCorpus, request: Request) -> dict[str, Any]:
        """Remove them."""
        await server.worker.behind(lambda: corpora.remove(_tenant(request), asked.corpus_id))
        return {"success": True}

    @app.get("/list_external_corpora")
    async def show(request: Request) -> dict[str, Any]:
        """The corpora of this key, and their tokens."""
        known = corpora.of(_tenant(request))
        return {
            "success": True,
            "corpus_token_counts": {key: corpus.tokens for key, corpus in known.items()},
        }


def _add_status(app: FastAPI, server: Server) -> None:
    def card() -> dict[str, Any]:
        return {
            "id": server.asking.model_name,
            "object": "model",
            "created": server.since,
            "owned_by": "graft",
            "root": server.asking.model_name,
            "parent": None,
            "max_model_len": server.engine.context_length,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model that is here."""
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The same by its name."""
        server.asking.check_model(name)
        return card()

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        """What a client may choose from, and how much it may send."""
        return {
            "model": server.asking.model_name,
            "version": __version__,
            "max_model_len": server.engine.context_length,
            "methods": server.asking.methods,
            "default_method": server.engine.default_draft,
            "max_document_characters": server.settings.max_document_characters,
            "max_body_bytes": server.settings.max_body,
        }

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether requests are taken."""
        if not server.worker.alive:
            raise Refusal("the server takes no requests", 503, BROKEN)
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of Graft."""
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(server.metrics.exposition(), media_type="text/plain; version=0.0.4")
