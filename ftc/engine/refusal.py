"""Which error a caller sees when the engine does not take, or cannot take, its request."""

from __future__ import annotations

from ftc.engine.messages import Refused
from ftc.errors import EngineError, FtcError, OverloadError, RequestError


class TooLongError(RequestError):
    """Prompt and output can never fit the context. `where` is the request field."""


class NotReadyError(EngineError):
    """The engine is loading or restarting; the same request succeeds later. HTTP 503."""


def error_of(refused: Refused) -> FtcError:
    """The refusal as an error to raise."""
    if refused.code == "overloaded":
        return OverloadError(refused.message, hint="send it again in a moment")
    kind = TooLongError if refused.code == "too_long" else RequestError
    return kind(refused.message, where=refused.where)
