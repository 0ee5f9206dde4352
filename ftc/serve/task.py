"""What a request asks of the model in the one shape that all APIs share, and the jobs it becomes."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from ftc.engine.messages import Sampling
from ftc.errors import RequestError
from ftc.serve.errors import UnknownModelError
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import Prompt

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What templates call the switch of their reasoning; a request may use any of them for any template.
SWITCHES = ("enable_thinking", "thinking")
_RESERVED = ("messages", "tools", "add_generation_prompt", "documents")
_SEEDS = 1 << 63


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for apart from the prompt; None leaves the choice to the model's defaults.

    `logprobs` as in Submit. `plain`: the text is the answer as it is, without reasoning and calls.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    stops: tuple[str, ...] = ()
    ignore_end: bool = False
    n: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    tools: list[dict[str, Any]] | None = None
    tools_allowed: bool = True
    one_call: bool = False
    logprobs: int = -1
    plain: bool = False


def check_model(name: str, model: ServedModel) -> None:
    """Raises UnknownModelError for a name that is not served."""
    if name not in model.names:
        raise UnknownModelError("not served here", where="model", value=name, hint=f"use {model.name!r}")


def jobs(id: str, prompt: Prompt, task: Task, model: ServedModel, context_tokens: int) -> list[Job]:
    """One job for each of the `n` answers, named ID-0, ID-1, ... Raises RequestError naming the field."""
    _check_logit_bias(task, model)
    sampling = _sampling(task, model)
    job = Job(
        id=id,
        prompt=prompt,
        sampling=sampling,
        max_tokens=_max_tokens(task, model, prompt, context_tokens),
        min_tokens=task.min_tokens or 0,
        stop_ids=() if task.ignore_end else model.stop_ids,
        stops=task.stops,
        tools=task.tools,
        tools_allowed=task.tools_allowed,
        one_call=task.one_call,
        logprobs=task.logprobs,
        plain=task.plain,
    )
    return [
        msgspec.structs.replace(
            job, id=f"{id}-{at}", sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + at) % _SEEDS)
        )
        for at in range(task.n)
    ]


def variables(
    model: ServedModel, given: dict[str, Any] | None, *, thinking: bool | None = None, effort: str | None = None
) -> dict[str, Any]:
    """Template variables: the request's own first, then what its thinking switch and its effort mean in this dialect.

    A switch of another spelling counts as the dialect's own. Raises RequestError for a variable that the server sets itself.
    """
    chosen = dict(given or {})
    for name in _RESERVED:
        if name in chosen:
            raise RequestError("may not be replaced", where=f"chat_template_kwargs.{name}")
    reasoning = model.chat.reasoning
    for name in SWITCHES:
        if reasoning is not None and reasoning.switch is not None and isinstance(chosen.get(name), bool):
            chosen.setdefault(reasoning.switch, chosen[name])
    if effort == "none":
        thinking, effort = False, None
    if thinking is not None and reasoning is not None:
        if reasoning.switch is not None:
            chosen.setdefault(reasoning.switch, thinking)
        elif not thinking:
            raise RequestError("this model always reasons", where="reasoning_effort", value="none")
    if effort is not None:
        chosen.setdefault("reasoning_effort", effort)
    return chosen


def _check_logit_bias(task: Task, model: ServedModel) -> None:
    for token in task.logit_bias or ():
        if not 0 <= token < model.tokenizer.size:
            raise RequestError(
                "not a token of this model",
                where=f"logit_bias.{token}",
                hint=f"ids are 0 to {model.tokenizer.size - 1}",
            )


def _sampling(task: Task, model: ServedModel) -> Sampling:
    default = model.defaults
    seed = secrets.randbelow(_SEEDS) if task.seed is None else task.seed % _SEEDS

    def chosen(value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else value

    return Sampling(
        temperature=chosen(task.temperature, default.temperature),
        top_k=max(0, chosen(task.top_k, default.top_k)),
        top_p=chosen(task.top_p, default.top_p),
        min_p=chosen(task.min_p, default.min_p),
        presence_penalty=chosen(task.presence_penalty, 0.0),
        frequency_penalty=chosen(task.frequency_penalty, 0.0),
        repetition_penalty=chosen(task.repetition_penalty, default.repetition_penalty),
        seed=seed,
        logit_bias=task.logit_bias or {},
    )


def _max_tokens(task: Task, model: ServedModel, prompt: Prompt, context_tokens: int) -> int:
    """What was asked for, cut to the room there is: agents ask for more than small contexts hold."""
    wanted = task.max_tokens or model.defaults.max_tokens
    room = context_tokens - len(prompt.tokens)
    if task.min_tokens is not None and task.min_tokens > min(wanted or room, room):
        raise RequestError("more than the most tokens allowed", where="min_tokens", value=task.min_tokens)
    return min(wanted or room, room)


def thinking_switch(thinking: dict[str, Any] | None) -> bool | None:
    """True, False, or None where the template decides; a budget of tokens is not kept. Raises RequestError."""
    if thinking is None:
        return None
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive", "auto"):
        raise RequestError("expected 'enabled', 'disabled' or 'adaptive'", where="thinking.type", value=kind)
    return {"enabled": True, "disabled": False}.get(kind)
