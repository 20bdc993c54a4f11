"""How a request fails: OpenAI's error object with the right status, never a traceback."""

import logging
import secrets
from dataclasses import dataclass, fields
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from graft.errors import ContextLengthError, GraftError, InputError
from graft.models.arena import OutOfRowsError
from graft.sampling import SamplingParams

log = logging.getLogger("graft.server")
INVALID, DENIED, BUSY, BROKEN = (
    "invalid_request_error",
    "authentication_error",
    "rate_limit_error",
    "server_error",
)
PARAMETERS = {each.name for each in fields(SamplingParams)}  # messages begin with their names
SHOWN = 200  # characters of what a client sent that are said back


@dataclass(eq=False)
class Refusal(GraftError):
    """A request that is answered with an error, in OpenAI's words; `param` is the field."""

    message: str
    status: int = 400
    kind: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message


def as_refusal(error: BaseException) -> Refusal:
    """What to tell the client; what is our own mistake is logged under a number and not told."""
    if isinstance(error, Refusal):
        return error
    line = " ".join(str(error).split())
    if isinstance(error, ContextLengthError):
        return Refusal(line, code="context_length_exceeded")
    if isinstance(error, OutOfRowsError):
        return Refusal(f"the server has not the memory for this request: {line}", code="too_large")
    if isinstance(error, InputError):
        first = line.partition(" ")[0]
        return Refusal(line, param=first if first in PARAMETERS else None)
    number = secrets.token_hex(6)
    log.error("internal error %s", number, exc_info=error)
    return Refusal(f"internal error {number}; the server's log says more", 500, BROKEN)


def as_body(refusal: Refusal) -> dict[str, Any]:
    """OpenAI's error object."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def as_response(refusal: Refusal) -> JSONResponse:
    """The whole answer."""
    headers = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(as_body(refusal), refusal.status, headers)


def handle_failures(app: FastAPI) -> None:
    """Have everything that a route raises answered this way."""

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return as_response(as_refusal(error))

    async def refuse_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return as_response(_of_validation(error))

    async def refuse_route(request: Request, error: HTTPException) -> JSONResponse:
        return as_response(Refusal(str(error.detail), error.status_code))

    app.add_exception_handler(GraftError, refuse)
    app.add_exception_handler(Exception, refuse)
    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_exception_handler(HTTPException, refuse_route)


def _of_validation(error: RequestValidationError) -> Refusal:
    """The first thing that is wrong with a body, by the name of its field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refusal("the body is not JSON")
    if first["loc"] == ("body",) and first["type"] != "value_error":
        return Refusal("send a JSON object, with Content-Type: application/json")
    place = [part for part in first["loc"] if part != "body"]
    # Names of types that pydantic puts between the fields of a union say nothing to a client.
    names = [str(part) for part in place if isinstance(part, int) or str(part).islower()]
    param = ".".join(names)[:SHOWN] or None
    if first["type"] == "extra_forbidden":
        return Refusal(f"{param!r} is not supported by this server", param=param)
    where = f"{param}: " if param else ""
    return Refusal(f"{where}{first['msg']}"[: 2 * SHOWN], param=param)
