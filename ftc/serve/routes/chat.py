"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar import Request, post
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from ftc.engine.client import EngineClient
from ftc.serve.admit import admit
from ftc.serve.body import decode
from ftc.serve.connection import Connection
from ftc.serve.generate import generate, interleave
from ftc.serve.model import ServedModel
from ftc.serve.reply import Reply
from ftc.serve.schema.chat import ChatRequest
from ftc.serve.sse import EventStream

# A body of 16 KiB is rendered and tokenized in about 5 ms; a larger one would hold up the other streams.
IN_PLACE_BYTES = 16 << 10


@post("/v1/chat/completions", status_code=200)
async def chat(request: Request[Any, Any, Any]) -> ASGIApp:
    """One answer, whole or as a stream; a client that leaves ends it."""
    engine: EngineClient = request.app.state.engine
    model: ServedModel = request.app.state.model
    body = await request.body()
    asked = decode(body, ChatRequest)
    context = min(model.context_tokens, engine.hello.context_tokens) if engine.hello else model.context_tokens
    reply = Reply(asked, model)
    connection = Connection(request.receive)
    streaming = False
    try:
        if len(body) <= IN_PLACE_BYTES:
            jobs = admit(asked, model, context, reply.id)
        else:
            jobs = await connection.race(asyncio.to_thread(admit, asked, model, context, reply.id))
        steps = interleave([generate(engine, model, job) for job in jobs])
        if asked.stream:
            stream = await EventStream.start(reply.stream(steps), connection)
            streaming = True
            return stream
        completion = await connection.race(reply.whole(steps))
        return ASGIResponse(body=msgspec.json.encode(completion), media_type="application/json")
    finally:
        if not streaming:
            connection.close()
