"""From the fields of a responses request to its job; what cannot be honoured is refused here, by name."""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError
from ftc.serve.admit.chat import refuse
from ftc.serve.admit.functions import check_choice, check_syntax, function, in_namespace
from ftc.serve.admit.items import turns
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import build_prompt
from ftc.serve.schema.responses import ResponsesRequest
from ftc.serve.task import EFFORTS, Task, check_model, jobs, variables

# Fields that ask for something this server does not have, and the values of them that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "conversation": (),
    "prompt": (),
    "moderation": (),
    "image": (),
    "context_management": ([],),
}
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
# Tools that the service itself would run: agents offer them to every server, and a model without them never asks.
HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "local_shell",
    "computer", "computer_use_preview", "shell", "tool_search",
)  # fmt: skip


def admit(asked: ResponsesRequest, items: list[dict[str, Any]], model: ServedModel, context_tokens: int, id: str) -> list[Job]:
    """The one job of a request whose whole conversation is `items`. Safe in any thread.

    Raises RequestError naming the field, TooLongError, UnknownModelError.
    """
    check_model(asked.model, model)
    refuse(asked, REFUSED)
    _check_options(asked)
    tools = _tools(asked, model)
    task = Task(
        max_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=asked.seed,
        tools=tools,
        tools_allowed=_tools_allowed(asked, tools),
        one_call=asked.parallel_tool_calls is False,
        logprobs=(asked.top_logprobs or 0) if wants_logprobs(asked) else -1,
    )
    effort = asked.reasoning.effort if asked.reasoning else None
    if effort is not None and effort not in EFFORTS:
        raise RequestError("unknown effort", where="reasoning.effort", value=effort, hint=f"use {', '.join(EFFORTS)}")
    given = variables(model, asked.chat_template_kwargs, effort=effort)
    prompt = build_prompt(model, turns(items, asked.instructions), tools, given, context_tokens, where="input")
    return jobs(id, prompt, task, model, context_tokens)


def wants_logprobs(asked: ResponsesRequest) -> bool:
    """Whether the text of the answer comes with its tokens' probabilities."""
    return LOGPROBS in (asked.include or ()) or bool(asked.top_logprobs)


def _check_options(asked: ResponsesRequest) -> None:
    form = asked.text.format if asked.text else None
    if form is not None and form.get("type") != "text":
        raise RequestError("not supported by this server", where="text.format", value=form.get("type"))
    for at, name in enumerate(asked.include or ()):
        if "." not in name:
            raise RequestError("unknown", where=f"include[{at}]", value=name)
    options = asked.stream_options
    if options is not None and options.include_obfuscation:
        raise RequestError("not supported by this server", where="stream_options.include_obfuscation", value=True)
    if options is not None and options.include_usage is not None:
        raise RequestError("unknown field", where="stream_options.include_usage")


def namespaced(tools: list[dict[str, Any]] | None) -> dict[str, tuple[str, str]]:
    """Of each function that stands in a namespace: the model's name for it -> (namespace, its own name)."""
    return {
        in_namespace(group["name"], tool["name"]): (group["name"], tool["name"])
        for group in tools or ()
        if group.get("type") == "namespace"
        for tool in group["tools"]
    }


def _tools(asked: ResponsesRequest, model: ServedModel) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = []
    for at, tool in enumerate(asked.tools or ()):
        where, kind = f"tools[{at}]", tool.get("type")
        if isinstance(kind, str) and kind.startswith(HOSTED):
            continue
        if kind != "namespace":
            found.append(_function(tool, where))
            continue
        name, inner = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not name:
            raise RequestError("expected a name", where=f"{where}.name", value=name)
        if not isinstance(inner, list):
            raise RequestError("expected a list of tools", where=f"{where}.tools")
        for place, one in enumerate(inner):
            told = _function(one, f"{where}.tools[{place}]")
            told["function"]["name"] = in_namespace(name, told["function"]["name"])
            found.append(told)
    return check_syntax(found, model)


def _function(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else type(tool).__name__
    if kind != "function":
        raise RequestError("only tools of type 'function' are known", where=f"{where}.type", value=kind)
    return function(tool.get("name"), tool.get("description"), tool.get("parameters"), tool.get("strict"), where, "parameters")


def _tools_allowed(asked: ResponsesRequest, tools: list[dict[str, Any]] | None) -> bool:
    choice = asked.tool_choice
    if isinstance(choice, dict):
        name = choice.get("name")
        return check_choice("function", name if isinstance(name, str) else None, tools, choice)
    return check_choice(choice or "auto", None, tools, choice)
