"""GET /v1/models and GET /v1/models/NAME, in the shape of the API whose client asks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from litestar import Request, get
from litestar.datastructures import State

from ftc.serve.answer import context_tokens
from ftc.serve.errors import UnknownModelError, speaks_messages
from ftc.serve.model import ServedModel


def _describe(request: Request[Any, Any, State]) -> dict[str, Any]:
    state = request.app.state
    model: ServedModel = state.model
    context = context_tokens(state)
    if speaks_messages(request.url.path, request.headers):
        return {
            "type": "model",
            "id": model.name,
            "display_name": model.name,
            "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "max_input_tokens": context,
            "max_tokens": context,
            "lifecycle": "active",
        }
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "ftc",
        "context_length": context,
        "max_model_len": context,
    }


@get("/v1/models", sync_to_thread=False)
def models(request: Request[Any, Any, State]) -> dict[str, Any]:
    """The list of the one model served, with its context in tokens."""
    one = _describe(request)
    if "type" in one:
        return {"data": [one], "has_more": False, "first_id": one["id"], "last_id": one["id"]}
    return {"object": "list", "data": [one]}


@get("/v1/models/{name:path}", sync_to_thread=False)
def model(request: Request[Any, Any, State]) -> dict[str, Any]:
    """One model by any of its names. Raises UnknownModelError."""
    name = str(request.path_params["name"]).removeprefix("/")
    if name not in request.app.state.model.names:
        raise UnknownModelError("not served here", where="model", value=name)
    return _describe(request)
