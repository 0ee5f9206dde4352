"""GET /metrics: the counters in the Prometheus text format."""

from __future__ import annotations

from litestar import Response, get
from litestar.datastructures import State


@get("/metrics", sync_to_thread=False)
def metrics(state: State) -> Response[str]:
    """Everything counted since the start."""
    return Response(state.meter.text(state.engine), media_type="text/plain; version=0.0.4; charset=utf-8")
