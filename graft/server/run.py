"""The server process: listens, serves and shuts down on a signal."""

import contextlib
import logging
import os
import platform
import socket
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from graft import __version__
from graft.decode.engine import Engine
from graft.decode.request import Request
from graft.errors import GraftError, InputError
from graft.sampling_params import SamplingParams
from graft.server.announce import RunningServer, announce, withdraw
from graft.server.app import Server, make_app
from graft.server.settings import ServerSettings

log = logging.getLogger("graft.server")
EXAMPLE_TOKENS, EXAMPLE_SALT = 8, "graft: example"
MARGIN = 5  # seconds after the grace period until uvicorn closes open connections


class GracefulServer(uvicorn.Server):
    """On the first signal it accepts no requests and lets running ones finish within the grace
    period; on the second it exits at once. While it runs, it is announced to `graft run`."""

    announcement: RunningServer | None = None
    ready: str = ""  # logged when it listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        if self.started and self.ready:
            log.info(self.ready)
        if self.started and self.announcement:
            try:
                announce(self.announcement)
            except (GraftError, OSError) as error:
                log.warning("`graft run` will not find this server: %s", error)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        if self.announcement:
            withdraw(self.announcement)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn."""
        server = cast(FastAPI, self.config.app).state.server
        again = self.should_exit
        grace = 0.0 if again else server.settings.grace
        log.info("shutting down; running requests have %g s", grace)
        server.worker.drain(grace)
        if again:
            self.force_exit = True
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """The server's socket; InputError if it cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(
            f"cannot listen at {host}:{port} ({error}); choose another --host or --port"
        ) from None
    return listening


def answer_example(engine: Engine) -> None:
    """Draft and verify for two prompts at once, and with the head if there is one, so that no
    request waits until what that takes is compiled, as in the first start on a machine."""
    greedy = SamplingParams(temperature=0.0, max_tokens=EXAMPLE_TOKENS)
    sampled = SamplingParams(temperature=1.0, max_tokens=EXAMPLE_TOKENS)
    prompts = (("Lift A1 is older than lift A2.", greedy), ("Red, green, blue.", sampled))
    for draft in (None, "head"):
        with contextlib.suppress(InputError):  # without a head
            engine.generate(
                [
                    Request(f"{text} " * 3, params, draft, cache_salt=EXAMPLE_SALT)
                    for text, params in prompts
                ]
            )


def run_server(engine: Engine, settings: ServerSettings, listening: socket.socket) -> None:
    """Serve until a signal arrives."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:  # libraries may set their own loggers to DEBUG
        handler.setLevel(logging.INFO)
    answer_example(engine)
    app = make_app(engine, settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.grace) + MARGIN,
    )
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    server = GracefulServer(config)
    name, url = settings.name or engine.model_name, f"http://{host}:{port}"
    server.ready = (
        f"{name} is ready at {url}/v1 (drafting: {engine.default_draft}); playground at {url}/"
    )
    server.announcement = announcement_of(app.state.server, listening)
    server.run(sockets=[listening])


def announcement_of(server: Server, listening: socket.socket) -> RunningServer | None:
    """None if `graft run` cannot expect its own answers from this server."""
    engine, options = server.engine, server.settings.options
    if options is None or not engine.is_exact:
        return None
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared)
    return RunningServer(
        url=f"http://{f'[{host}]' if ':' in host else host}:{port}",
        pid=os.getpid(),
        machine=platform.node(),
        instance=server.instance,
        version=__version__,
        fingerprint=engine.loaded.checkpoint.fingerprint,
        model_name=engine.model_name,
        context_length=engine.context_length,
        needs_key=bool(server.settings.api_keys),
        options=options,
    )
