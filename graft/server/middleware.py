"""ASGI middleware: host names, API keys and the limits of a body, checked before it is received."""

import asyncio
import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graft.server.errors import DENIED, SHOWN, ApiError, as_response
from graft.server.pages import is_page

PUBLIC = ("/health", "/version", "/metrics")


class HostCheck:
    """Rejects requests whose Host header is not one of `hosts`; without hosts all are accepted.

    A page of another site can resolve its own name to this machine and then read the responses of
    a server here (DNS rebinding), but the browser still sends that name in the Host header.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and self._hosts:
            name = host_name(Headers(scope=scope).get("host", ""))
            if name not in self._hosts:
                error = ApiError(
                    f"unknown host {name[:SHOWN]!r}; start the server with --allowed-host to "
                    "accept it",
                    code="unknown_host",
                )
                await as_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().removesuffix(".")


class AuthAndLimits:
    """Checks `Authorization: Bearer KEY` and the size of the body. The key's digest becomes
    `state.tenant`: nothing is shared between tenants."""

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
        except ApiError as error:
            await as_response(error)(scope, receive, send)
            return
        await self._app(scope, limited, send)

    def _tenant(self, scope: Scope) -> str:
        path = scope["path"]
        if not self._digests or path in PUBLIC or is_page(path):
            return ""
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All keys are compared, in constant time, so that timing reveals none of them.
        same = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(same):
            raise ApiError("the API key is missing or wrong", 401, DENIED, code="invalid_api_key")
        return tenant_of(key.strip())

    def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """`receive` that raises when the body is larger than its limit, whatever its header says,
        or arrives too slowly."""
        too_large = f"a request may have {self._max_body} bytes"
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_body:
            raise ApiError(too_large, 413)
        received, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._body_timeout

        async def counted() -> Message:  # FastAPI passes on no exception but HTTPException
            nonlocal received, complete
            try:
                async with asyncio.timeout_at(None if complete else deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request's body took too long to arrive") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > self._max_body:
                raise HTTPException(413, too_large)
            return message

        return counted


def tenant_of(key: str) -> str:
    """The name of a key's tenant, which does not reveal the key."""
    return hashlib.sha256(_digest(key)).hexdigest()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
