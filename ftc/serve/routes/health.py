"""GET /health and GET /ready: whether a request would be served now."""

from __future__ import annotations

from typing import Any

from litestar import Response, get
from litestar.datastructures import State

from ftc.engine.client import EngineClient


@get("/health", sync_to_thread=False)
def health(state: State) -> Response[dict[str, Any]]:
    """200 when ready, else 503; `done` of `total` is in the phase's own units, 0 of 0 is unknown."""
    engine: EngineClient = state.engine
    ready = engine.state == "ready"
    phase = "ready" if ready else engine.failure or engine.progress.phase
    done, total = (0, 0) if ready else (engine.progress.done, engine.progress.total)
    body = {"status": engine.state, "phase": phase, "done": done, "total": total}
    return Response(body, status_code=200 if ready else 503)


@get("/ready", sync_to_thread=False)
def ready(state: State) -> Response[dict[str, Any]]:
    """200 while new requests are taken, else 503: also from the moment on that the server is told to stop."""
    taken = state.engine.state == "ready" and not state.front.draining
    return Response({"ready": taken}, status_code=200 if taken else 503)
