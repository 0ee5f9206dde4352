"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from ftc.serve.admit.completions import admit
from ftc.serve.answer import answer, context_tokens
from ftc.serve.body import decode
from ftc.serve.reply.completions import CompletionReply
from ftc.serve.schema.completions import CompletionRequest


@post("/v1/completions", status_code=200)
async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
    """Text that goes on from the prompts, whole or as a stream; a client that leaves ends it."""
    body = await request.body()
    asked = decode(body, CompletionRequest)
    state = request.app.state
    reply = CompletionReply(asked, state.model)
    context = context_tokens(state)
    return await answer(request, reply, lambda: admit(asked, state.model, context, reply.id), len(body), bool(asked.stream))
