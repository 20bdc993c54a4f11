"""A real server in a thread: uvicorn on a free port around an engine."""

import threading
import time
from contextlib import contextmanager

import openai
import uvicorn

from graft.server.app import make_app
from graft.server.run import MARGIN, GracefulServer, announcement_of, listen
from graft.server.settings import ServerSettings


class Serving:
    """The URL of a server and its objects."""

    def __init__(self, engine, **settings):
        self.engine = engine
        self.app = make_app(engine, ServerSettings(**settings))
        self.state = self.app.state.server
        self.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        grace = int(self.state.settings.grace) + MARGIN
        config = uvicorn.Config(self.app, log_config=None, timeout_graceful_shutdown=grace)
        self.server = GracefulServer(config)
        self.server.announcement = announcement_of(self.state, self.socket)
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True
        )

    def rows_in_use(self):
        """Queued and running sequences, after the step in flight."""
        self.engine.loop.lock.exclusive(self.engine.loop.collect_finished)
        return self.engine.running + self.engine.waiting


class Held:
    """Lets an engine step only when `let` is called."""

    def __init__(self, engine, monkeypatch):
        self.gate, step = threading.Semaphore(0), engine.loop.step

        def wait_and_step():
            self.gate.acquire(timeout=20)
            step()

        monkeypatch.setattr(engine.loop, "step", wait_and_step)

    def let(self, steps=100_000):
        self.gate.release(steps)


@contextmanager
def serving(engine, **settings):
    running = Serving(engine, **settings)
    running.thread.start()
    while not running.server.started:
        assert running.thread.is_alive()
        time.sleep(0.01)
    try:
        yield running
    finally:
        running.state.worker.drain(0.0)
        running.server.should_exit = True
        running.thread.join(30)
    assert not running.thread.is_alive()


def user(server, key="first"):
    """OpenAI's client with one of the server's keys."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
