"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from ftc.serve.admit.messages import admit, count
from ftc.serve.answer import IN_PLACE_BYTES, answer, context_tokens
from ftc.serve.body import decode
from ftc.serve.reply.messages import MessagesReply
from ftc.serve.schema.messages import CountRequest, MessagesRequest


@post("/v1/messages", status_code=200)
async def messages(request: Request[Any, Any, Any]) -> ASGIApp:
    """One answer, whole or as a stream; a client that leaves ends it."""
    body = await request.body()
    asked = decode(body, MessagesRequest)
    state = request.app.state
    reply = MessagesReply(asked)
    context, keep = context_tokens(state), state.operation.keep_nonce
    return await answer(
        request, reply, lambda: admit(asked, state.model, context, reply.id, keep), len(body), bool(asked.stream)
    )


@post("/v1/messages/count_tokens", status_code=200)
async def count_tokens(request: Request[Any, Any, Any]) -> dict[str, int]:
    """The prompt tokens of a request that is not made; the engine is not asked."""
    body = await request.body()
    asked = decode(body, CountRequest)
    state = request.app.state
    # A prompt that is too long is counted too: that is what clients ask for. Far beyond the context it is refused.
    arguments = (asked, state.model, 16 * state.model.context_tokens, state.operation.keep_nonce)
    small = len(body) <= IN_PLACE_BYTES
    return {"input_tokens": count(*arguments) if small else await asyncio.to_thread(count, *arguments)}
