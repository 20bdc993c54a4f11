"""Load against a server that answers from a script, over real connections."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from made_up_rows import Recorder

from benchmarks.report import report
from benchmarks.serve.client import Streamed
from benchmarks.serve.load import Tally, figures, percentiles
from benchmarks.serve.prompts import made_up
from benchmarks.serve.run import run
from benchmarks.serve.settings import ServeSettings
from graft.bench.result_file import open_results, read_results
from graft.errors import InputError

pytest.importorskip("httpx")


class Server(BaseHTTPRequestHandler):
    """Streams three events of six tokens; refuses invalid requests; may be busy."""

    protocol_version = "HTTP/1.1"
    bodies: list[dict] = []
    busy = 0
    model, end = "tiny", "."

    def do_GET(self):
        self._send(json.dumps({"data": [{"id": self.model}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        wrong = body["temperature"] < 0 or not body["messages"] or body["max_tokens"] < 0
        if wrong or body["model"] != self.model:
            return self._send("{}", 400)
        if type(self).busy:
            type(self).busy -= 1
            return self._send("{}", 429, ("retry-after", "0"))
        events = [
            {"choices": [{"delta": {"role": "assistant"}}]},
            *({"choices": [{"delta": {"content": each}}]} for each in ("We ", "agree", self.end)),
            {"choices": [], "usage": {"completion_tokens": 6}},
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return self._send("".join([*lines, "data: [DONE]\n\n"]))

    def _send(self, text, code=200, *headers):
        self.send_response(code)
        self.send_header("content-length", str(len(text)))
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        try:
            self.wfile.write(text.encode())
        except OSError:  # the client has left
            pass

    def log_message(self, *_):
        pass


@contextmanager
def running(handler=Server):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def url():
    Server.bodies, Server.busy = [], 0
    with running() as found:
        yield found


def test_every_concurrency_is_measured_and_a_run_resumes(url, tmp_path):
    path = tmp_path / "serve.jsonl"
    settings = ServeSettings(url=f"{url}/v1", concurrency=(1, 3), requests=4, prompts=2, check=True)
    with pytest.raises(KeyboardInterrupt), open_results(path) as file:
        run(settings, file, Recorder(interrupt_after=1))
    with open_results(path) as file:
        assert run(settings, file, progress := Recorder())
    assert (progress.total, progress.done) == (2, 1)
    rows = read_results(path).rows
    assert [(row["concurrency"], row["completed"], row["tokens"]) for row in rows] == [
        (1, 4, 24), (3, 4, 24),
    ]  # fmt: skip
    assert all(row["different"] == row["failed"] == 0 for row in rows)
    assert rows[0]["first_token_ms"]["p50"] <= rows[0]["request_ms"]["p50"]
    assert "| 3 | 4 |" in report(path).as_markdown()
    assert len(report(path).figures) == 2
    first = Server.bodies[0]
    assert first["stream_options"] == {"include_usage": True}
    assert first["model"] == "tiny"


@pytest.mark.parametrize(("end", "different"), [(".", 0), ("!", 3)])
def test_outputs_are_compared_with_those_of_a_reference(url, end, different):
    reference = type("Reference", (Server,), {"model": "other", "end": end})
    with running(reference) as other, open_results(None) as file:
        settings = ServeSettings(url=url, concurrency=(2,), requests=3, check=True, reference=other)
        assert run(settings, file, Recorder()) is (different == 0)
    assert file.results.rows[0]["different"] == different


def test_clients_that_disconnect_and_invalid_requests_are_counted(url):
    Server.busy = 0
    settings = ServeSettings(url=url, concurrency=(4,), requests=60, disconnect=0.3, invalid=0.3)
    with open_results(None) as file:
        assert run(settings, file, Recorder())
    [row] = file.results.rows
    assert row["disconnected"] > 0
    assert row["refused"] > 0
    assert row["wrongly_answered"] == row["failed"] == 0
    assert row["completed"] + row["disconnected"] + row["refused"] == 60


def test_a_full_server_counts_as_full(url):
    settings = ServeSettings(url=url, concurrency=(1,), requests=3, prompts=1)
    with open_results(None) as file:

        class Fill(Recorder):
            def show(self, text):
                Server.busy = 2 if "concurrency" in text else 0

        assert run(settings, file, Fill())
    [row] = file.results.rows
    assert (row["completed"], row["full"]) == (1, 2)


def test_a_server_that_refuses_requests_is_an_error(url):
    settings = ServeSettings(url=url, model="other", requests=1)
    with pytest.raises(InputError, match="the server refuses the requests: 400"):
        with open_results(None) as file:
            run(settings, file, Recorder())


def test_a_missing_server_is_an_error():
    settings = ServeSettings(url="http://127.0.0.1:9")
    with pytest.raises(InputError, match="does not answer as an OpenAI server .*; start one"):
        with open_results(None) as file:
            run(settings, file, Recorder())


def test_figures_by_hand():
    one = Streamed(text="ab", pieces=[0.5, 1.0], seconds=1.5, tokens=5)
    found = figures(Tally(answers=[one, one], failures=["x"]), 2.0)
    assert found["tokens_per_second"] == 5
    assert found["requests_per_second"] == 1
    assert found["first_token_ms"]["p50"] == 500
    assert found["per_token_ms"]["p50"] == 250  # a second for four later tokens
    assert found["between_pieces_ms"]["p99"] == 500
    assert found["failed"] == 1
    assert percentiles([]) is None
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2000.0, "p90": 3000.0, "p99": 3000.0}


def test_prompts_are_always_the_same():
    assert made_up(5) == made_up(5)
    assert len(made_up(5)) == 5


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"concurrency": (0,)}, "--concurrency takes whole numbers from 1 on"),
        ({"requests": 0}, "--requests must be at least 1"),
        ({"disconnect": 0.6, "invalid": 0.5}, "--disconnect and --invalid are shares"),
        ({"seconds": 0.0}, "--seconds must be more than 0"),
        ({"reference": "http://127.0.0.1:1"}, "--reference needs --check"),
        ({"check": True, "temperature": 1.0}, "--check compares greedy outputs"),
    ],
)
def test_wrong_settings_are_refused(changes, line):
    with pytest.raises(InputError, match=line):
        ServeSettings(**changes)


def test_load_on_the_server_of_graft():
    from serving import serving
    from tiny import tiny_engine

    settings = {"concurrency": (3,), "requests": 12, "prompts": 3, "max_tokens": 4}
    with serving(tiny_engine()) as running, open_results(None) as file:
        given = ServeSettings(url=running.url, check=True, disconnect=0.2, invalid=0.3, **settings)
        assert run(given, file, Recorder()), file.results.rows
    [row] = file.results.rows
    assert row["completed"] + row["disconnected"] + row["refused"] == 12
    assert row["refused"] > 0
