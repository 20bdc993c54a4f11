"""The playground's static files. They hold no data, so they need no key."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

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
    app.mount(FILES, _Files(directory=FOLDER))

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def playground() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=HEADERS)


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file with HEADERS."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
