"""From steps to the wire of chat completions: chunks of a stream, or the whole answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET, UnsetType

from ftc.serve.errors import describe
from ftc.serve.generate import Counts, Job, Step
from ftc.serve.model import ServedModel
from ftc.serve.reply.tokens import logprob
from ftc.serve.schema.chat import (
    ChatRequest,
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    CompletionDetails,
    Delta,
    Function,
    FunctionDelta,
    Logprobs,
    Message,
    PromptDetails,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from ftc.serve.sse import DONE, KEEP_ALIVE, event
from ftc.text.events import Assembler, ContentDelta, Event, ReasoningDelta, ToolCallStart, joined
from ftc.text.events import ToolCallDelta as CallDelta


class ChatReply:
    """One answer in the making. `id` is also the stem of its requests' ids in the engine."""

    def __init__(self, asked: ChatRequest, model: ServedModel) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.jobs: Sequence[Job] = ()
        self._created = int(time.time())
        self._model, self._name = model, asked.model
        self._tier: str | UnsetType = "default" if asked.service_tier is not None else UNSET
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._with_logprobs = bool(asked.logprobs)
        self._counts: dict[int, Counts] = {}

    async def stream(self, steps: AsyncGenerator[tuple[int, Step], None]) -> AsyncGenerator[bytes, None]:
        """Events of a stream: of each choice a chunk with the role, its deltas and a chunk with the finish reason."""
        waiting: dict[int, list[TokenLogprob]] = {}
        try:
            async for index, step in steps:
                if index not in self._counts:
                    self._counts[index] = step.counts
                    waiting[index] = []
                    yield self._chunk(ChunkChoice(index, Delta(role="assistant", content="")))
                waiting[index] += [logprob(self._model, one) for one in step.logprobs]
                for delta in deltas(step.events):
                    yield self._chunk(ChunkChoice(index, delta, self._take(waiting, index)))
                if step.finish is not None:
                    yield self._chunk(ChunkChoice(index, Delta(), self._take(waiting, index), step.finish))
        finally:
            await steps.aclose()
        if self._with_usage:
            yield event(self._new_chunk([], self._usage()))
        yield DONE

    async def whole(self, steps: AsyncGenerator[tuple[int, Step], None]) -> Completion:
        """The answer when it is complete."""
        assemblers: dict[int, Assembler] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        finishes: dict[int, str] = {}
        try:
            async for index, step in steps:
                self._counts[index] = step.counts
                assemblers.setdefault(index, Assembler()).push(step.events)
                logprobs.setdefault(index, []).extend(logprob(self._model, one) for one in step.logprobs)
                if step.finish is not None:
                    finishes[index] = step.finish
        finally:
            await steps.aclose()
        choices = [
            Choice(index, _message(assemblers[index]), finish, Logprobs(logprobs[index]) if self._with_logprobs else None)
            for index, finish in sorted(finishes.items())
        ]
        return Completion(self.id, self._created, self._name, choices, self._usage(), service_tier=self._tier)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def broken(self, error: Exception) -> bytes:
        return event(describe(error)[1])

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return event(self._new_chunk([choice], None if self._with_usage else UNSET))

    def _new_chunk(self, choices: list[ChunkChoice], usage: Usage | None | UnsetType) -> Chunk:
        return Chunk(self.id, self._created, self._name, choices, service_tier=self._tier, usage=usage)

    def _take(self, waiting: dict[int, list[TokenLogprob]], index: int) -> Logprobs | None:
        """What has no chunk yet: tokens whose text was held back go with the next text."""
        entries, waiting[index] = waiting[index], []
        return Logprobs(entries) if entries else None

    def _usage(self) -> Usage:
        counts = list(self._counts.values())
        prompt = counts[0].prompt if counts else 0
        completion = sum(one.completion for one in counts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(min((one.cached for one in counts), default=0)),
            completion_tokens_details=CompletionDetails(sum(one.reasoning for one in counts)),
        )


def deltas(events: list[Event]) -> list[Delta]:
    """Events as deltas, neighbours of one kind as one."""
    found: list[Delta] = []
    for one in joined(events):
        match one:
            case ContentDelta(text):
                found.append(Delta(content=text))
            case ReasoningDelta(text):
                found.append(Delta(reasoning_content=text))
            case ToolCallStart(index, id, name):
                found.append(Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(name, ""), id, "function")]))
            case CallDelta(index, text):
                found.append(Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=text))]))
    return found


def _message(assembler: Assembler) -> Message:
    answer = assembler.answer()
    calls = [ToolCall(call.id, Function(call.name, call.arguments)) for call in answer.calls]
    return Message(
        content=answer.content if answer.content or not calls else None,
        reasoning_content=answer.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
