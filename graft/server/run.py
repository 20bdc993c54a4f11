"""The server process: listens, serves and shuts down on a signal."""

import logging
import socket
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.server.app import make_app
from graft.server.settings import ServerSettings

log = logging.getLogger("graft.server")
MARGIN = 5  # seconds after the grace period until uvicorn closes open connections


class GracefulServer(uvicorn.Server):
    """On the first signal it accepts no requests and lets running ones finish within the grace
    period; on the second it exits at once."""

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


def run_server(engine: Engine, settings: ServerSettings, listening: socket.socket) -> None:
    """Serve until a signal arrives."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = uvicorn.Config(
        make_app(engine, settings),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.grace) + MARGIN,
    )
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    log.info(
        "%s is ready at http://%s:%d/v1 (drafting: %s); playground at http://%s:%d/",
        settings.name or engine.model_name, host, port, engine.default_draft, host, port,
    )  # fmt: skip
    GracefulServer(config).run(sockets=[listening])
