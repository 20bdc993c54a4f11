"""Errors as OpenAI's error objects with their status codes, never a traceback."""

import logging
import secrets
from dataclasses import dataclass, fields
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from graft.draft.options import USED_BY
from graft.errors import CheckpointError, ContextLengthError, GraftError, InputError
from graft.models.arena import OutOfRowsError
from graft.sampling import SamplingParams

log = logging.getLogger("graft.server")
INVALID, DENIED, BUSY, SERVER_ERROR = (
    "invalid_request_error",
    "authentication_error",
    "rate_limit_error",
    "server_error",
)
# Fields by the names that messages begin with
PARAMETERS = {each.name: each.name for each in fields(SamplingParams)}
PARAMETERS |= dict.fromkeys(USED_BY, "speculative")
SHOWN = 200  # characters of a client's text that an error message repeats


@dataclass(eq=False)
class ApiError(GraftError):
    """An error response; `kind` is OpenAI's error type, `param` the field of the request."""

    message: str
    status: int = 400
    kind: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message


def as_api_error(error: BaseException) -> ApiError:
    """The response to an exception. Internal errors are logged under an id, and the client gets
    only the id."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        return ApiError(str(error.detail), error.status_code)
    line = " ".join(str(error).split())
    if isinstance(error, ContextLengthError):
        return ApiError(line, code="context_length_exceeded")
    if isinstance(error, OutOfRowsError):
        return ApiError(f"not enough memory for this request: {line}", code="too_large")
    if isinstance(error, InputError):
        first = line.partition(" ")[0]
        return ApiError(line, param=PARAMETERS.get(first))
    if isinstance(error, CheckpointError):  # the disk is full or cannot be written
        log.error("%s", line)
        return ApiError("the server cannot keep this on disk; see its log", 507, SERVER_ERROR)
    error_id = secrets.token_hex(6)
    log.error("internal error %s", error_id, exc_info=error)
    return ApiError(f"internal error {error_id}; see the server's log", 500, SERVER_ERROR)


def as_body(error: ApiError) -> dict[str, Any]:
    """OpenAI's error object."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def as_response(error: ApiError) -> JSONResponse:
    """The HTTP response."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(as_body(error), error.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Install the handlers of everything that a route may raise."""

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        return as_response(as_api_error(error))

    for kind in (GraftError, Exception, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, on_error)


def _of_validation(error: RequestValidationError) -> ApiError:
    """The first invalid field of a body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError("the body is not JSON")
    if first["loc"] == ("body",) and first["type"] != "value_error":
        return ApiError("send a JSON object, with Content-Type: application/json")
    place = [part for part in first["loc"] if part != "body"]
    # pydantic puts names of types between the fields of a union; clients do not know them.
    names = [str(part) for part in place if isinstance(part, int) or str(part).islower()]
    param = ".".join(names)[:SHOWN] or None
    if first["type"] == "extra_forbidden":
        return ApiError(f"{param!r} is not supported by this server", param=param)
    where = f"{param}: " if param else ""
    return ApiError(f"{where}{first['msg']}"[: 2 * SHOWN], param=param)
