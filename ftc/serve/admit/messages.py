"""From the fields of a messages request to its job: which turns its blocks are, and what is refused by name."""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError
from ftc.serve.admit.blocks import system_texts, turns
from ftc.serve.admit.chat import refuse
from ftc.serve.admit.functions import check_choice, check_syntax, function
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import Prompt, build_prompt
from ftc.serve.schema.messages import CountRequest, MessagesRequest
from ftc.serve.task import EFFORTS, Task, check_model, jobs, thinking_switch, variables

# Fields that ask for something this server does not have, and the values of them that ask for nothing.
REFUSED_IN_COUNT: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],)}
REFUSED: dict[str, tuple[Any, ...]] = {**REFUSED_IN_COUNT, "container": (), "compaction": (), "thread": ()}
_CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": "function"}


def admit(asked: MessagesRequest, model: ServedModel, context_tokens: int, id: str, keep_nonce: bool) -> list[Job]:
    """The one job of a request. Runs for long on long prompts; safe in any thread.

    Raises RequestError naming the field, TooLongError, UnknownModelError.
    """
    check_model(asked.model, model)
    refuse(asked, REFUSED)
    tools = _tools(asked, model)
    choice = asked.tool_choice or {"type": "auto"}
    kind = _CHOICES.get(str(choice.get("type")))
    if kind is None:
        raise RequestError("unknown choice", where="tool_choice.type", value=choice.get("type"))
    task = Task(
        max_tokens=asked.max_tokens,
        stops=tuple(asked.stop_sequences or ()),
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        seed=asked.seed,
        tools=tools,
        tools_allowed=check_choice(kind, choice.get("name") if kind == "function" else None, tools, choice),
        one_call=choice.get("disable_parallel_tool_use") is True,
    )
    prompt = _prompt(asked, model, tools, context_tokens, keep_nonce)
    return jobs(id, prompt, task, model, context_tokens)


def count(asked: CountRequest, model: ServedModel, context_tokens: int, keep_nonce: bool) -> int:
    """The prompt tokens that the same fields cost in a request. Raises what `admit` raises."""
    check_model(asked.model, model)
    refuse(asked, REFUSED_IN_COUNT)
    return len(_prompt(asked, model, _tools(asked, model), context_tokens, keep_nonce).tokens)


def _prompt(
    asked: CountRequest, model: ServedModel, tools: list[dict[str, Any]] | None, context_tokens: int, keep_nonce: bool
) -> Prompt:
    messages = turns(asked.messages)
    if messages[-1]["role"] == "assistant":
        raise RequestError(
            "the conversation must end with a user message", where="messages", hint="an answer cannot be prefilled"
        )
    system = system_texts(asked.system, keep_nonce)
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    given = variables(model, asked.chat_template_kwargs, thinking=thinking_switch(asked.thinking), effort=_effort(asked))
    return build_prompt(model, messages, tools, given, context_tokens)


def _effort(asked: CountRequest) -> str | None:
    for field, value in (asked.output_config or {}).items():
        if field == "effort" and value in (None, *EFFORTS):
            continue
        if value is not None:
            raise RequestError("not supported by this server", where=f"output_config.{field}", value=value)
    return (asked.output_config or {}).get("effort")


def _tools(asked: CountRequest, model: ServedModel) -> list[dict[str, Any]] | None:
    found = []
    for at, tool in enumerate(asked.tools or ()):
        where = f"tools[{at}]"
        if tool.get("type") not in (None, "custom"):
            raise RequestError(
                "only the client's own tools are known",
                where=f"{where}.type",
                value=tool.get("type"),
                hint="declare it with a name and an input_schema",
            )
        found.append(
            function(
                tool.get("name"), tool.get("description"), tool.get("input_schema"), tool.get("strict"), where, "input_schema"
            )
        )
    return check_syntax(found, model)
