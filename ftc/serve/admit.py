"""From the fields of a chat request to the jobs it asks for; what cannot be honoured is refused here, by name."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from ftc.engine.messages import Sampling
from ftc.errors import RequestError
from ftc.serve.errors import UnknownModelError
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import Prompt, build_prompt
from ftc.serve.schema.chat import ChatRequest

# Fields that ask for something this server does not have, and the values of them that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "verbosity": ("medium",),
    "audio": (),
    "functions": (),
    "function_call": (),
    "moderation": (),
    "web_search_options": (),
}
_HINTS = {"functions": "use tools", "function_call": "use tool_choice"}
_RESERVED = ("messages", "tools", "add_generation_prompt", "documents")
_SEEDS = 1 << 63


def admit(asked: ChatRequest, model: ServedModel, context_tokens: int, id: str) -> list[Job]:
    """The jobs of a request, one for each of its `n` choices. Runs for long on long prompts; safe in any thread.

    Raises RequestError naming the field, TooLongError, UnknownModelError.
    """
    if asked.model not in model.names:
        raise UnknownModelError("not served here", where="model", value=asked.model, hint=f"use {model.name!r}")
    _refuse_unsupported(asked)
    _check_logit_bias(asked, model)
    tools = _tools(asked, model)
    tools_allowed = _tools_allowed(asked)
    sampling = _sampling(asked, model)
    logprobs = _logprobs(asked)
    prompt = build_prompt(model, asked.messages, tools, _variables(asked, model), context_tokens)
    job = Job(
        id=id,
        prompt=prompt,
        sampling=sampling,
        max_tokens=_max_tokens(asked, model, prompt, context_tokens),
        min_tokens=asked.min_tokens or 0,
        stop_ids=() if asked.ignore_eos else model.stop_ids,
        stops=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        tools=tools,
        tools_allowed=tools_allowed,
        one_call=asked.parallel_tool_calls is False,
        logprobs=logprobs,
    )
    return [
        msgspec.structs.replace(
            job, id=f"{id}-{at}", sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + at) % _SEEDS)
        )
        for at in range(asked.n or 1)
    ]


def _refuse_unsupported(asked: ChatRequest) -> None:
    for field, allowed in _REFUSED.items():
        value = getattr(asked, field)
        if value is not None and value not in allowed:
            raise RequestError("not supported by this server", where=field, value=value, hint=_HINTS.get(field))
    options = asked.stream_options
    if options is not None and options.include_obfuscation:
        raise RequestError("not supported by this server", where="stream_options.include_obfuscation", value=True)
    if options is not None and not asked.stream:
        raise RequestError("only allowed with stream: true", where="stream_options")


def _check_logit_bias(asked: ChatRequest, model: ServedModel) -> None:
    for token in asked.logit_bias or ():
        if not 0 <= token < model.tokenizer.size:
            raise RequestError(
                "not a token of this model",
                where=f"logit_bias.{token}",
                hint=f"ids are 0 to {model.tokenizer.size - 1}",
            )


def _sampling(asked: ChatRequest, model: ServedModel) -> Sampling:
    default = model.defaults
    seed = secrets.randbelow(_SEEDS) if asked.seed is None else asked.seed % _SEEDS

    def chosen(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    return Sampling(
        temperature=chosen(asked.temperature, default.temperature),
        top_k=max(0, chosen(asked.top_k, default.top_k)),
        top_p=chosen(asked.top_p, default.top_p),
        min_p=chosen(asked.min_p, default.min_p),
        presence_penalty=chosen(asked.presence_penalty, 0.0),
        frequency_penalty=chosen(asked.frequency_penalty, 0.0),
        repetition_penalty=chosen(asked.repetition_penalty, default.repetition_penalty),
        seed=seed,
        logit_bias=asked.logit_bias or {},
    )


def _max_tokens(asked: ChatRequest, model: ServedModel, prompt: Prompt, context_tokens: int) -> int:
    """What was asked for, cut to the room there is: agents ask for more than small contexts hold."""
    wanted = asked.max_completion_tokens or asked.max_tokens or model.defaults.max_tokens
    room = context_tokens - len(prompt.tokens)
    if asked.min_tokens is not None and asked.min_tokens > min(wanted or room, room):
        raise RequestError("more than the most tokens allowed", where="min_tokens", value=asked.min_tokens)
    return min(wanted or room, room)


def _logprobs(asked: ChatRequest) -> int:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise RequestError("only allowed with logprobs: true", where="top_logprobs", value=asked.top_logprobs)
    return (asked.top_logprobs or 0) if asked.logprobs else -1


def _tools(asked: ChatRequest, model: ServedModel) -> list[dict[str, Any]] | None:
    for at, tool in enumerate(asked.tools or ()):
        where = f"tools[{at}]"
        if tool.get("type") != "function":
            raise RequestError("only tools of type 'function' are known", where=f"{where}.type", value=tool.get("type"))
        function = tool.get("function")
        if not isinstance(function, dict):
            raise RequestError("expected an object", where=f"{where}.function")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError("expected a name", where=f"{where}.function.name", value=name)
        if not isinstance(function.get("parameters", {}), dict | None):
            raise RequestError("expected a JSON schema", where=f"{where}.function.parameters")
        if function.get("strict"):
            raise RequestError("not supported by this server", where=f"{where}.function.strict", value=True)
    if asked.tools and model.template is not None and model.syntax is None:
        raise RequestError("this model's chat template has no tools", where="tools")
    return asked.tools or None


def _tools_allowed(asked: ChatRequest) -> bool:
    """Whether the model may call; forcing it to is not possible yet."""
    if asked.tool_choice in (None, "auto", "none"):
        return asked.tool_choice != "none"
    named = asked.tool_choice.get("function", {}) if isinstance(asked.tool_choice, dict) else None
    if not asked.tools:
        raise RequestError("there are no tools to choose from", where="tool_choice", value=asked.tool_choice)
    if isinstance(named, dict) and named.get("name") not in [tool["function"]["name"] for tool in asked.tools]:
        raise RequestError("names no declared tool", where="tool_choice", value=asked.tool_choice)
    raise RequestError("only 'auto' and 'none' are supported", where="tool_choice", value=asked.tool_choice)


def _variables(asked: ChatRequest, model: ServedModel) -> dict[str, Any]:
    """Template variables: the request's own, and what its reasoning effort means in this dialect."""
    variables = dict(asked.chat_template_kwargs or {})
    for name in _RESERVED:
        if name in variables:
            raise RequestError("may not be replaced", where=f"chat_template_kwargs.{name}")
    reasoning, effort = model.chat.reasoning, asked.reasoning_effort
    if effort == "none" and reasoning is not None:
        if reasoning.switch is None:
            raise RequestError("this model always reasons", where="reasoning_effort", value=effort)
        variables.setdefault(reasoning.switch, False)
    elif effort is not None:
        variables.setdefault("reasoning_effort", effort)
    return variables
