"""GET /v1/models and GET /v1/models/NAME."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from litestar.datastructures import State

from ftc.engine.client import EngineClient
from ftc.serve.errors import UnknownModelError
from ftc.serve.model import ServedModel


def _describe(state: State) -> dict[str, Any]:
    model: ServedModel = state.model
    engine: EngineClient = state.engine
    context = min(model.context_tokens, engine.hello.context_tokens) if engine.hello else model.context_tokens
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "ftc",
        "context_length": context,
        "max_model_len": context,
    }


@get("/v1/models", sync_to_thread=False)
def models(state: State) -> dict[str, Any]:
    """The list of the one model served, with its context in tokens."""
    return {"object": "list", "data": [_describe(state)]}


@get("/v1/models/{name:path}", sync_to_thread=False)
def model(request: Request[Any, Any, State]) -> dict[str, Any]:
    """One model by any of its names. Raises UnknownModelError."""
    name = str(request.path_params["name"]).removeprefix("/")
    state = request.app.state
    if name not in state.model.names:
        raise UnknownModelError("not served here", where="model", value=name)
    return _describe(state)
