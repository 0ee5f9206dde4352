"""POST /tokenize and POST /detokenize, also below /v1."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, post

from ftc.errors import RequestError
from ftc.serve.admit.completions import check_tokens
from ftc.serve.answer import context_tokens
from ftc.serve.body import decode
from ftc.serve.model import ServedModel
from ftc.serve.schema.tokens import DetokenizeRequest, TokenizeRequest
from ftc.serve.task import check_model, variables
from ftc.text.conversation import normalize
from ftc.text.template import missing_template_error


@post(["/tokenize", "/v1/tokenize"], status_code=200)
async def tokenize(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """The token ids of a text or a conversation, their count, and the longest context here."""
    asked = decode(await request.body(), TokenizeRequest)
    model: ServedModel = request.app.state.model
    tokens = await asyncio.to_thread(_tokens, asked, model)
    told: dict[str, Any] = {"count": len(tokens), "max_model_len": context_tokens(request.app.state), "tokens": tokens}
    if asked.return_token_strs:
        told["token_strs"] = [model.tokenizer.decode([token]) for token in tokens]
    return told


@post(["/detokenize", "/v1/detokenize"], status_code=200)
async def detokenize(request: Request[Any, Any, Any]) -> dict[str, Any]:
    """The text of token ids."""
    asked = decode(await request.body(), DetokenizeRequest)
    model: ServedModel = request.app.state.model
    if asked.model is not None:
        check_model(asked.model, model)
    return {"prompt": model.tokenizer.decode(check_tokens(asked.tokens, model, "tokens"))}


def _tokens(asked: TokenizeRequest, model: ServedModel) -> list[int]:
    if asked.model is not None:
        check_model(asked.model, model)
    if (asked.prompt is None) == (asked.messages is None):
        raise RequestError("one of prompt and messages is needed", where="prompt")
    if asked.prompt is not None:
        return model.tokenizer.encode(asked.prompt, special=asked.add_special_tokens is not False)
    if model.template is None:
        raise missing_template_error(model.folder)
    given = variables(model, asked.chat_template_kwargs)
    generation = asked.add_generation_prompt is not False
    text = model.template.render(normalize(asked.messages), asked.tools, generation, **given)
    return model.tokenizer.encode(text, special=asked.add_special_tokens is True)
