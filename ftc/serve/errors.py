"""How errors look on the wire: the status, and the body {"error": {message, type, param, code}}."""

from __future__ import annotations

import traceback
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from ftc.engine.refusal import NotReadyError, TooLongError
from ftc.errors import EngineError, FtcError, OverloadError, RequestError
from ftc.log import logger
from ftc.serve.connection import ClientGone

_log = logger("serve")


class UnknownModelError(RequestError):
    """A model that is not served here. HTTP 404."""


class ForbiddenError(RequestError):
    """A request that a web page of another origin may have made. HTTP 403."""


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for any error; what is not meant for users keeps its text to the log."""
    status, kind, code = _class_of(error)
    param: str | None = None
    if isinstance(error, FtcError):
        message = error.message if error.hint is None else f"{error.message}; {error.hint}"
        param = error.where if isinstance(error, RequestError) else None
    elif isinstance(error, HTTPException):
        message = error.detail or type(error).__name__
    else:
        message = "internal error; the server's log has its text"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _class_of(error: Exception) -> tuple[int, str, str | None]:
    match error:
        case TooLongError():
            return 400, "invalid_request_error", "context_length_exceeded"
        case UnknownModelError():
            return 404, "invalid_request_error", "model_not_found"
        case ForbiddenError():
            return 403, "invalid_request_error", "forbidden"
        case OverloadError():
            return 429, "rate_limit_error", "overloaded"
        case NotReadyError():
            return 503, "server_error", "not_ready"
        case EngineError():
            return 500, "server_error", "engine_failed"
        case FtcError():
            return 400, "invalid_request_error", None
        case ClientGone():
            return 499, "invalid_request_error", "client_gone"
        case HTTPException(status_code=status) if status < 500:
            return status, "invalid_request_error", None
    return 500, "server_error", None


def respond(_: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """The exception handler of all routes."""
    status, body = describe(error)
    if status >= 500 and not isinstance(error, FtcError):
        _log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status in (429, 503):
        headers["retry-after"] = "1"
    if status == 413:
        # Else the rest of the body would be read, for nothing.
        headers["connection"] = "close"
    return Response(body, status_code=status, media_type="application/json", headers=headers)
