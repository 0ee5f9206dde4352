"""The HTTP application: routes, the guard before them, one shape for all errors."""

from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.middleware import DefineMiddleware

from ftc.engine.client import EngineClient
from ftc.serve.errors import respond
from ftc.serve.guard import Guard
from ftc.serve.model import ServedModel
from ftc.serve.routes.chat import chat
from ftc.serve.routes.health import health
from ftc.serve.routes.models import model as one_model
from ftc.serve.routes.models import models

# The longest contexts are a million tokens, about 4 MB of text; agents send tool output many times that by mistake.
BODY_LIMIT_BYTES = 64 << 20


def create_app(model: ServedModel, engine: EngineClient, host: str = "127.0.0.1") -> Litestar:
    """The app for one model on one engine, which its owner starts and stops. `host` is the address it is served on."""
    return Litestar(
        route_handlers=[chat, models, one_model, health],
        state=State({"model": model, "engine": engine}),
        middleware=[DefineMiddleware(Guard, bound=host)],
        exception_handlers={HTTPException: respond, Exception: respond},
        request_max_body_size=BODY_LIMIT_BYTES,
        openapi_config=None,
        logging_config=None,
    )
