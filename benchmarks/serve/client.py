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
PATIENCE = 600.0  # seconds
TOO_MANY = 429
REFUSED = (400, 404, 422)


@dataclass(slots=True)
class Streamed:
    """What came: its text, when its pieces came (in seconds from the request on), its tokens."""

    text: str = ""
    pieces: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0  # as the server counts, else the pieces
    left: bool = False
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
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers=headers,
        timeout=PATIENCE,
        limits=limits,
    )


async def stream(
    client: "httpx.AsyncClient", body: dict[str, Any], leave_after: int | None = None
) -> Streamed:
    """Ask and read to the end, or leave after so many pieces."""
    import httpx

    told, began = Streamed(), time.perf_counter()
    try:
        async with client.stream("POST", PATH, json=body | STREAMED) as answer:
            if answer.status_code == TOO_MANY:
                told.busy = float(answer.headers.get("retry-after", 1))
                return told
            if answer.status_code != 200:
                told.error = f"{answer.status_code}: {(await answer.aread())[:200]!r}"
                return told
            async for line in answer.aiter_lines():
                _take(told, line, time.perf_counter() - began)
                if leave_after is not None and len(told.pieces) >= leave_after:
                    told.left = True
                    return told
    except httpx.HTTPError as error:
        told.error = f"{type(error).__name__}: {error}"
    told.seconds = time.perf_counter() - began
    told.tokens = told.tokens or len(told.pieces)
    return told


def _take(told: Streamed, line: str, now: float) -> None:
    """One line of the stream."""
    if not line.startswith("data: {"):
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        told.error = str(event["error"].get("message", event["error"]))
        return
    told.tokens = (event.get("usage") or {}).get("completion_tokens", told.tokens)
    choices = event.get("choices")
    piece = choices[0]["delta"].get("content") if choices else None
    if piece:
        told.pieces.append(now)
        told.text += piece


async def is_refused(client: "httpx.AsyncClient", body: dict[str, Any]) -> bool | None:
    """Whether a request that makes no sense is refused; None where the server is full."""
    answer = await client.post(PATH, json=body)
    return None if answer.status_code == TOO_MANY else answer.status_code in REFUSED


async def served_model(client: "httpx.AsyncClient", wanted: str | None) -> str:
    """The model asked for, or the first that the server has."""
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
