"""From the fields of a chat request to the jobs it asks for; what cannot be honoured is refused here, by name."""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError
from ftc.serve.admit.functions import check_choice, check_syntax
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import build_prompt
from ftc.serve.schema.chat import ChatRequest
from ftc.serve.task import Task, check_model, jobs, thinking_switch, variables

# Fields that ask for something this server does not have, and the values of them that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
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


def admit(asked: ChatRequest, model: ServedModel, context_tokens: int, id: str) -> list[Job]:
    """The jobs of a request, one for each of its `n` choices. Runs for long on long prompts; safe in any thread.

    Raises RequestError naming the field, TooLongError, UnknownModelError.
    """
    check_model(asked.model, model)
    refuse(asked, REFUSED)
    _check_stream_options(asked)
    tools = _tools(asked, model)
    task = Task(
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        min_tokens=asked.min_tokens,
        stops=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        ignore_end=bool(asked.ignore_eos),
        n=asked.n or 1,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        seed=asked.seed,
        logit_bias=asked.logit_bias,
        tools=tools,
        tools_allowed=_tools_allowed(asked),
        one_call=asked.parallel_tool_calls is False,
        logprobs=_logprobs(asked),
    )
    thinking = asked.enable_thinking if asked.enable_thinking is not None else thinking_switch(asked.thinking)
    given = variables(model, asked.chat_template_kwargs, thinking=thinking, effort=asked.reasoning_effort)
    prompt = build_prompt(model, asked.messages, tools, given, context_tokens)
    return jobs(id, prompt, task, model, context_tokens)


def refuse(asked: Any, refused: dict[str, tuple[Any, ...]]) -> None:
    """Raises RequestError for a field of `refused` that is neither absent nor one of the values listed for it."""
    for field, allowed in refused.items():
        value = getattr(asked, field)
        if value is not None and value not in allowed:
            raise RequestError("not supported by this server", where=field, value=value, hint=_HINTS.get(field))


def _check_stream_options(asked: ChatRequest) -> None:
    options = asked.stream_options
    if options is not None and options.include_obfuscation:
        raise RequestError("not supported by this server", where="stream_options.include_obfuscation", value=True)
    if options is not None and not asked.stream:
        raise RequestError("only allowed with stream: true", where="stream_options")


def _logprobs(asked: ChatRequest) -> int:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise RequestError("only allowed with logprobs: true", where="top_logprobs", value=asked.top_logprobs)
    return (asked.top_logprobs or 0) if asked.logprobs else -1


def _tools(asked: ChatRequest, model: ServedModel) -> list[dict[str, Any]] | None:
    """The tools as they were given: templates may show fields that no API knows."""
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
    return check_syntax(asked.tools or [], model)


def _tools_allowed(asked: ChatRequest) -> bool:
    choice = asked.tool_choice
    if isinstance(choice, dict):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        return check_choice("function", name if isinstance(named, dict) else None, asked.tools, choice)
    return check_choice(choice or "auto", None, asked.tools, choice)
