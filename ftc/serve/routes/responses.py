"""POST /v1/responses, and GET and DELETE of the answers that were kept."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from ftc.errors import RequestError
from ftc.serve.admit.items import as_items
from ftc.serve.admit.responses import admit
from ftc.serve.answer import answer, context_tokens
from ftc.serve.body import decode
from ftc.serve.reply.responses import ResponsesReply
from ftc.serve.schema.responses import Response, ResponsesRequest
from ftc.serve.store import ResponseStore, Stored


@post("/v1/responses", status_code=200)
async def create(request: Request[Any, Any, Any]) -> ASGIApp:
    """One answer, whole or as a stream; a client that leaves ends it."""
    body = await request.body()
    asked = decode(body, ResponsesRequest)
    state = request.app.state
    store: ResponseStore = state.responses
    own = as_items(asked.input)
    before: list[dict[str, Any]] = []
    if asked.previous_response_id is not None:
        before = store.get(asked.previous_response_id, where="previous_response_id").items()
    items = [*before, *own]

    def keep(response: Response) -> None:
        if asked.store is not False:
            store.put(Stored(response, items, len(own)))

    reply = ResponsesReply(asked, state.model, keep)
    context = context_tokens(state)
    return await answer(
        request, reply, lambda: admit(asked, items, state.model, context, reply.id), len(body), bool(asked.stream)
    )


@get("/v1/responses/{response_id:str}", sync_to_thread=False)
def retrieve(request: Request[Any, Any, Any]) -> ASGIResponse:
    """An answer that was kept. Raises UnknownResponseError."""
    stored: Stored = request.app.state.responses.get(_id(request))
    return ASGIResponse(body=msgspec.json.encode(stored.response), media_type="application/json")


@delete("/v1/responses/{response_id:str}", status_code=200, sync_to_thread=False)
def remove(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Forgets an answer. Raises UnknownResponseError."""
    request.app.state.responses.delete(_id(request))
    return {"id": _id(request), "object": "response", "deleted": True}


@get("/v1/responses/{response_id:str}/input_items", sync_to_thread=False)
def input_items(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """The items that an answer's own request brought, the last one first. Raises UnknownResponseError."""
    stored: Stored = request.app.state.responses.get(_id(request))
    own = stored.input[len(stored.input) - stored.own :]
    data = [{"id": f"item_{at}", **item} for at, item in enumerate(own)][::-1]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": False, **ends}


@post("/v1/responses/{response_id:str}/cancel", status_code=200, sync_to_thread=False)
def cancel(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """Refused: an answer ends with its request, so none is left to be cancelled."""
    request.app.state.responses.get(_id(request))
    raise RequestError("only background responses can be cancelled, and there are none here", where="response_id")


def _id(request: Request[Any, Any, Any]) -> str:
    return str(request.path_params["response_id"])
