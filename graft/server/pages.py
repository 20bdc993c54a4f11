"""The playground's static files. They hold no data, so they need no key."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = Path(__file__).parent / "playground"
FILES = "/playground"
# Only files of this server, no inline scripts, no embedding in other pages.
POLICY = "; ".join(
    [
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def is_page(path: str) -> bool:
    """Whether a path is the page or one of its files."""
    return path == "/" or path.startswith(f"{FILES}/")


def add_pages(app: FastAPI) -> None:
    """Add the routes."""
    app.mount(FILES, _WithHeaders(StaticFiles(directory=FOLDER)))

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def playground() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=HEADERS)


class _WithHeaders:
    """Adds HEADERS to all responses of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, with_headers)
