"""The HTTP application: routes, what stands before them, one shape of errors for each API."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware

from ftc.engine.client import EngineClient
from ftc.serve.errors import respond
from ftc.serve.front import Front
from ftc.serve.guard import Guard
from ftc.serve.meter import Meter
from ftc.serve.model import ServedModel
from ftc.serve.operation import Operation
from ftc.serve.routes import chat, completions, health, messages, metrics, models, responses, tokens
from ftc.serve.store import ResponseStore

# The longest contexts are a million tokens, about 4 MB of text; agents send tool output many times that by mistake.
BODY_LIMIT_BYTES = 64 << 20

ROUTES = [
    chat.chat,
    completions.completions,
    responses.create,
    responses.retrieve,
    responses.remove,
    responses.input_items,
    responses.cancel,
    messages.messages,
    messages.count_tokens,
    tokens.tokenize,
    tokens.detokenize,
    models.models,
    models.model,
    health.health,
    health.ready,
    metrics.metrics,
]


def create_app(model: ServedModel, engine: EngineClient, host: str = "127.0.0.1", operation: Operation | None = None) -> Front:
    """The app for one model on one engine, which its owner starts and stops. `host` is the address it is served on.

    `operation` is that of the settings unless given. Raises FtcError naming a setting that makes no sense.
    """
    operation = Operation.from_settings() if operation is None else operation
    meter = Meter()
    state = State({"model": model, "engine": engine, "meter": meter, "operation": operation, "responses": ResponseStore()})
    app = Litestar(
        route_handlers=ROUTES,
        state=state,
        middleware=[DefineMiddleware(Guard, bound=host, origins=operation.origins)],
        exception_handlers={HTTPException: respond, Exception: respond},
        request_max_body_size=BODY_LIMIT_BYTES,
        openapi_config=None,
        logging_config=None,
    )
    app.state.front = front = Front(app, operation, meter)
    return front
