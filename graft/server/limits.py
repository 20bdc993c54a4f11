"""Who may come in, and how much they may bring; checked before a body is read."""

import asyncio
import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graft.server.failures import DENIED, Refusal, as_response
from graft.server.pages import is_page

OPEN_TO_ALL = ("/health", "/version", "/metrics")


class Gate:
    """Middleware. With keys, `Authorization: Bearer KEY` says whose request it is; what is kept
    for one key is never seen by another, so the key's digest becomes `state.tenant`."""

    def __init__(
        self, app: ASGIApp, *, api_keys: Sequence[str], max_body: int, body_timeout: float
    ) -> None:
        self._app, self._max_body, self._body_timeout = app, max_body, body_timeout
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["tenant"] = self._tenant(scope)
            limited = self._limited(Headers(scope=scope), receive)
        except Refusal as refusal:
            await as_response(refusal)(scope, receive, send)
            return
        await self._app(scope, limited, send)

    def _tenant(self, scope: Scope) -> str:
        path = scope["path"]
        if not self._digests or path in OPEN_TO_ALL or is_page(path):
            return ""
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # Every key is compared, in constant time, whichever it is.
        same = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(same):
            raise Refusal("the API key is missing or wrong", 401, DENIED, code="invalid_api_key")
        return hashlib.sha256(given).hexdigest()

    def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """The body, or a refusal as soon as it is too long, whatever its header says, or takes too
        long to come."""
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_body:
            raise Refusal(self._too_large, 413)
        seen, whole = 0, False
        until = asyncio.get_running_loop().time() + self._body_timeout

        async def counted() -> Message:  # FastAPI lets nothing but HTTPException through
            nonlocal seen, whole
            try:
                async with asyncio.timeout_at(None if whole else until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request's body took too long to come") from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > self._max_body:
                raise HTTPException(413, self._too_large)
            return message

        return counted

    @property
    def _too_large(self) -> str:
        return f"a request may have {self._max_body} bytes"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
