"""One streaming request to an OpenAI-compatible server, timed as its client sees it."""

import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from graft.errors import InputError

if TYPE_CHECKING:
    import httpx

PATH = "/v1/chat/completions"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
TIMEOUT = 600.0  # seconds
IDLE = 2.0  # seconds of a connection kept: servers close theirs after 5
TOO_MANY = 429
REFUSED = (400, 404, 422)


@dataclass(slots=True)
class Streamed:
    """Text and tokens of an answer, and the seconds from the request to each of its events."""

    text: str = ""
    pieces: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0  # as the server counts, else the events
    disconnected: bool = False
    busy: float | None = None  # seconds to wait, where the server is full
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds from one piece to the next."""
        return [later - earlier for earlier, later in pairwise(self.pieces)]


def http_client(url: str, api_key: str | None) -> "httpx.AsyncClient":
    """For as many connections as are wanted."""
    try:
        import httpx
    except ImportError:
        raise InputError("load needs httpx: pip install 'graftlm[bench]'") from None
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE)
    return httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers=headers,
        timeout=TIMEOUT,
        limits=limits,
    )


async def stream(
    client: "httpx.AsyncClient", body: dict[str, Any], disconnect_after: int | None = None
) -> Streamed:
    """Stream an answer to its end, or disconnect after so many events."""
    import httpx

    found, began = Streamed(), time.perf_counter()
    try:
        async with client.stream("POST", PATH, json=body | STREAMED) as answer:
            if answer.status_code == TOO_MANY:
                found.busy = float(answer.headers.get("retry-after", 1))
                return found
            if answer.status_code != 200:
                found.error = f"{answer.status_code}: {(await answer.aread())[:200]!r}"
                return found
            async for line in answer.aiter_lines():
                _take(found, line, time.perf_counter() - began)
                if disconnect_after is not None and len(found.pieces) >= disconnect_after:
                    found.disconnected = True
                    return found
    except httpx.HTTPError as error:
        found.error = f"{type(error).__name__}: {error}"
    found.seconds = time.perf_counter() - began
    found.tokens = found.tokens or len(found.pieces)
    return found


def _take(found: Streamed, line: str, now: float) -> None:
    """One line of the stream."""
    if not line.startswith("data: {"):
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        found.error = str(event["error"].get("message", event["error"]))
        return
    found.tokens = (event.get("usage") or {}).get("completion_tokens", found.tokens)
    choices = event.get("choices")
    piece = choices[0]["delta"].get("content") if choices else None
    if piece:
        found.pieces.append(now)
        found.text += piece


async def is_refused(client: "httpx.AsyncClient", body: dict[str, Any]) -> bool | None:
    """Whether an invalid request is refused; None where the server is full."""
    answer = await client.post(PATH, json=body)
    return None if answer.status_code == TOO_MANY else answer.status_code in REFUSED


async def served_model(client: "httpx.AsyncClient", wanted: str | None) -> str:
    """The given model, or the first of the server."""
    import httpx

    try:
        answer = await client.get("/v1/models")
        answer.raise_for_status()
        return wanted or str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{client.base_url} does not answer as an OpenAI server "
            f"({' '.join(str(error).split()) or type(error).__name__}); start one, such as graft "
            "serve, or name its --url and --api-key"
        ) from None
