"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from ftc.serve.admit.chat import admit
from ftc.serve.answer import answer, context_tokens
from ftc.serve.body import decode
from ftc.serve.reply.chat import ChatReply
from ftc.serve.schema.chat import ChatRequest


@post("/v1/chat/completions", status_code=200)
async def chat(request: Request[Any, Any, Any]) -> ASGIApp:
    """One answer, whole or as a stream; a client that leaves ends it."""
    body = await request.body()
    asked = decode(body, ChatRequest)
    state = request.app.state
    reply = ChatReply(asked, state.model)
    context = context_tokens(state)
    return await answer(request, reply, lambda: admit(asked, state.model, context, reply.id), len(body), bool(asked.stream))
