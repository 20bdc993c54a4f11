"""By which names a server may be called.

A page of another site can have its own name resolved to this machine and then read what a server
here answers (DNS rebinding); the browser still sends that name along. A server for this machine
alone therefore answers to this machine's names and no others.
"""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from graft.server.failures import SHOWN, Refusal, as_response


class HostCheck:
    """Middleware that refuses requests to a host of another name; with no names all are served."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and self._hosts:
            name = host_name(Headers(scope=scope).get("host", ""))
            if name not in self._hosts:
                refusal = Refusal(
                    f"this server is not called {name[:SHOWN]!r}; "
                    "start it with --allowed-host to give it this name",
                    code="unknown_host",
                )
                await as_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().removesuffix(".")
