"""How errors look on the wire: the status, and the body in the shape of the API that was called."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
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


class UnknownResponseError(RequestError):
    """A stored answer that is not, or no longer, here. HTTP 404."""


class UnauthorizedError(RequestError):
    """A request without a key of this server. HTTP 401."""


class ForbiddenError(RequestError):
    """A request that a web page of another origin may have made. HTTP 403."""


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body {"error": {message, type, param, code}}; what is not for users keeps its text to the log."""
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


# The messages API has its own words, and a status of its own for a full queue.
_MESSAGES_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def describe_for_messages(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body {"type": "error", "error": {type, message}}, as the messages API has them."""
    status, body = describe(error)
    status = 529 if status == 429 else status
    kind = _MESSAGES_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return status, {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}}


def speaks_messages(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is one of the messages API: by its path, or by the version header that its clients send."""
    return path.startswith("/v1/messages") or "anthropic-version" in headers


def _class_of(error: Exception) -> tuple[int, str, str | None]:
    match error:
        case TooLongError():
            return 400, "invalid_request_error", "context_length_exceeded"
        case UnknownModelError():
            return 404, "invalid_request_error", "model_not_found"
        case UnknownResponseError():
            return 404, "invalid_request_error", "response_not_found"
        case UnauthorizedError():
            return 401, "authentication_error", "invalid_api_key"
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


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """The exception handler of all routes."""
    is_messages = speaks_messages(request.url.path, request.headers)
    status, body = (describe_for_messages if is_messages else describe)(error)
    if status >= 500 and not isinstance(error, FtcError):
        _log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status in (429, 503, 529):
        headers["retry-after"] = "1"
    if status == 413:
        # Else the rest of the body would be read, for nothing.
        headers["connection"] = "close"
    return Response(body, status_code=status, media_type="application/json", headers=headers)
