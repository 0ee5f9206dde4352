"""From the fields of a completion request to the jobs it asks for: several prompts, several answers to each."""

from __future__ import annotations

from typing import Any

from ftc.errors import RequestError
from ftc.serve.admit.chat import refuse
from ftc.serve.generate import Job
from ftc.serve.model import ServedModel
from ftc.serve.prompt import Prompt, build_plain_prompt, check_length
from ftc.serve.schema.completions import CompletionRequest
from ftc.serve.task import Task, check_model, jobs

REFUSED: dict[str, tuple[Any, ...]] = {"best_of": (1,), "suffix": ("",)}
MAX_PROMPTS = 128
# What the standard says where a request says nothing.
DEFAULT_MAX_TOKENS = 16


def admit(asked: CompletionRequest, model: ServedModel, context_tokens: int, id: str) -> list[Job]:
    """The jobs: those of the first prompt, then those of the next. Safe in any thread.

    Raises RequestError naming the field, TooLongError, UnknownModelError.
    """
    check_model(asked.model, model)
    refuse(asked, REFUSED)
    if asked.stream_options is not None and not asked.stream:
        raise RequestError("only allowed with stream: true", where="stream_options")
    if asked.echo and asked.logprobs is not None:
        raise RequestError("not supported together with echo", where="logprobs", value=asked.logprobs)
    task = Task(
        max_tokens=asked.max_tokens or DEFAULT_MAX_TOKENS,
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
        logprobs=-1 if asked.logprobs is None else asked.logprobs,
        plain=True,
    )
    found: list[Job] = []
    for at, prompt in enumerate(_prompts(asked, model, context_tokens)):
        found += jobs(f"{id}-{at}", prompt, task, model, context_tokens)
    return found


def _prompts(asked: CompletionRequest, model: ServedModel, context_tokens: int) -> list[Prompt]:
    given = asked.prompt
    special = asked.add_special_tokens is not False
    if isinstance(given, str) or not given or all(type(one) is int for one in given):
        return [_prompt(given, model, context_tokens, "prompt", special)]
    if len(given) > MAX_PROMPTS:
        raise RequestError(f"at most {MAX_PROMPTS} prompts", where="prompt", value=len(given))
    return [_prompt(one, model, context_tokens, f"prompt[{at}]", special) for at, one in enumerate(given)]


def _prompt(one: Any, model: ServedModel, context_tokens: int, where: str, special: bool) -> Prompt:
    if isinstance(one, str):
        prompt = build_plain_prompt(model, one, context_tokens, where, special)
    else:
        prompt = Prompt(check_tokens(one, model, where), in_reasoning=False)
        check_length(len(prompt.tokens), context_tokens, where)
    if not prompt.tokens:
        raise RequestError("needs at least one token", where=where)
    return prompt


def check_tokens(ids: Any, model: ServedModel, where: str) -> list[int]:
    """`ids` if they are tokens of the model. Raises RequestError naming the first that is not."""
    if not isinstance(ids, list):
        raise RequestError("must be a text or a list of token ids", where=where, value=type(ids).__name__)
    for at, id in enumerate(ids):
        if type(id) is not int or not 0 <= id < model.tokenizer.size:
            raise RequestError(
                "not a token of this model",
                where=f"{where}[{at}]",
                value=id,
                hint=f"ids are 0 to {model.tokenizer.size - 1}",
            )
    return ids
