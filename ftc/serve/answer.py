"""The way of a request that makes the model speak, the same for every API: admit, generate, reply whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from ftc.engine.client import EngineClient
from ftc.serve.connection import Connection
from ftc.serve.generate import Job, Step, generate, interleave
from ftc.serve.model import ServedModel
from ftc.serve.sse import EventStream

# A body of 16 KiB is rendered and tokenized in about 5 ms; a larger one would hold up the other streams.
IN_PLACE_BYTES = 16 << 10


class Reply(Protocol):
    """One answer in the making, in the shape of one API.

    `id` is also the stem of its jobs' ids; `jobs` are those that were admitted, set before the first step.
    """

    id: str
    jobs: Sequence[Job]

    def stream(self, steps: AsyncGenerator[tuple[int, Step], None]) -> AsyncGenerator[bytes, None]:
        """The events of a stream."""

    async def whole(self, steps: AsyncGenerator[tuple[int, Step], None]) -> Any:
        """The answer when it is complete, as a value to encode."""

    def keep_alive(self) -> bytes:
        """What is sent when nothing else was for a while."""

    def broken(self, error: Exception) -> bytes:
        """The last event of a stream that an error ends."""


def context_tokens(state: State) -> int:
    """The longest prompt and output, in tokens: the model's, or less where the engine has less room."""
    engine: EngineClient = state.engine
    model: ServedModel = state.model
    return min(model.context_tokens, engine.hello.context_tokens) if engine.hello else model.context_tokens


async def answer(
    request: Request[Any, Any, State], reply: Reply, admit: Callable[[], list[Job]], size: int, streamed: bool
) -> ASGIApp:
    """Runs `admit` and answers with its jobs. `size` is that of the request's body in bytes.

    Raises what `admit` and the engine raise before the first event; a client that leaves ends the jobs.
    """
    state = request.app.state
    connection = Connection(request.receive)
    streaming = False
    try:
        admitted = admit() if size <= IN_PLACE_BYTES else await connection.race(asyncio.to_thread(admit))
        reply.jobs = admitted
        steps = interleave([state.meter.measured(generate(state.engine, state.model, job)) for job in admitted])
        if streamed:
            stream = await EventStream.start(reply.stream(steps), connection, alive=reply.keep_alive, broken=reply.broken)
            streaming = True
            return stream
        whole = await connection.race(reply.whole(steps))
        return ASGIResponse(body=msgspec.json.encode(whole), media_type="application/json")
    finally:
        if not streaming:
            connection.close()
