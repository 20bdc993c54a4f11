"""The process: listens, answers, and goes when it is told to."""

import logging
import socket
from types import FrameType

import uvicorn

from graft.decode.engine import Engine
from graft.errors import InputError
from graft.server.app import make_app
from graft.server.settings import ServerSettings

log = logging.getLogger("graft.server")
MARGIN = 5  # seconds more than the grace, until uvicorn cuts what is still open


class GracefulServer(uvicorn.Server):
    """Told to stop, it takes nothing new and lets answers end within their grace; told twice, it
    goes at once."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn."""
        server = self.config.app.state.server
        again = self.should_exit
        grace = 0.0 if again else server.settings.grace
        log.info("stopping; answers under way have %g s", grace)
        server.worker.drain(grace)
        if again:
            self.force_exit = True
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A socket for the server; InputError where there can be none."""
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
    """Serve until a signal comes."""
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
