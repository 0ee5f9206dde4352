"""From steps to the wire of the messages API: named events of blocks that open and close, or the whole answer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from ftc.serve.errors import describe_for_messages
from ftc.serve.generate import Counts, Job, Step
from ftc.serve.schema.messages import (
    Message,
    MessagesRequest,
    OutputDetails,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from ftc.serve.sse import event
from ftc.text.events import Assembler, Call, ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallStart, joined

EMPTY = msgspec.Raw(b"{}")
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply:
    """One answer in the making. A stream's first event is its start, whether a token or a silence comes first."""

    def __init__(self, asked: MessagesRequest) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        self.jobs: Sequence[Job] = ()
        self._name = asked.model
        self._started = False
        self._index = -1
        self._open: str | None = None  # the kind of the block that is open

    async def stream(self, steps: AsyncGenerator[tuple[int, Step], None]) -> AsyncGenerator[bytes, None]:
        """message_start, blocks one after another, message_delta, message_stop."""
        try:
            async for _, step in steps:
                if not self._started:
                    yield self._start(step.counts.cached)
                if written := b"".join(self._write(one) for one in joined(step.events)):
                    yield written
                if step.finish is not None:
                    yield self._end(step)
        finally:
            await steps.aclose()

    async def whole(self, steps: AsyncGenerator[tuple[int, Step], None]) -> Message:
        """The answer when it is complete."""
        assembler = Assembler()
        last: Step | None = None
        try:
            async for _, step in steps:
                assembler.push(step.events)
                last = step
        finally:
            await steps.aclose()
        assert last is not None, "an answer has at least one step"
        answer = assembler.answer()
        content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
        if answer.reasoning:
            content.append(ThinkingBlock(answer.reasoning))
        if answer.content or not (answer.reasoning or answer.calls):
            content.append(TextBlock(answer.content))
        content += [ToolUseBlock(_call_id(call.id), call.name, _input(call)) for call in answer.calls]
        return Message(
            id=self.id,
            model=self._name,
            content=content,
            usage=_usage(last.counts),
            stop_reason=_reason(last),
            stop_sequence=last.stop,
        )

    def keep_alive(self) -> bytes:
        """A ping; before the first token the start comes with it, since clients expect that first."""
        return (b"" if self._started else self._start(0)) + event({"type": "ping"}, "ping")

    def broken(self, error: Exception) -> bytes:
        return event(describe_for_messages(error)[1], "error")

    def _start(self, cached: int) -> bytes:
        self._started = True
        usage = _usage(Counts(prompt=sum(len(job.prompt.tokens) for job in self.jobs), cached=cached))
        return self._event("message_start", message=Message(id=self.id, model=self._name, content=[], usage=usage))

    def _write(self, one: Event) -> bytes:
        match one:
            case ReasoningDelta(text):
                head = self._to("thinking", ThinkingBlock(""))
                return head + self._delta({"type": "thinking_delta", "thinking": text})
            case ContentDelta(text):
                return self._to("text", TextBlock("")) + self._delta({"type": "text_delta", "text": text})
            case ToolCallStart(_, id, name):
                return self._close() + self._to("tool_use", ToolUseBlock(_call_id(id), name, EMPTY))
            case ToolCallDelta(_, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})
        return self._close()

    def _to(self, kind: str, block: TextBlock | ThinkingBlock | ToolUseBlock) -> bytes:
        """Opens a block of this kind unless one is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        return closed + self._event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return self._event("content_block_stop", index=self._index)

    def _delta(self, delta: dict[str, str]) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _end(self, step: Step) -> bytes:
        empty = self._to("text", TextBlock("")) if self._index < 0 else b""
        delta = {"stop_reason": _reason(step), "stop_sequence": step.stop}
        last = self._event("message_delta", delta=delta, usage=_usage(step.counts))
        return empty + self._close() + last + self._event("message_stop")

    def _event(self, name: str, /, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)


def _reason(step: Step) -> str:
    return "stop_sequence" if step.stop is not None and step.finish == "stop" else _REASONS[step.finish or "stop"]


def _usage(counts: Counts) -> Usage:
    return Usage(
        input_tokens=counts.prompt - counts.cached,
        output_tokens=counts.completion,
        cache_read_input_tokens=counts.cached,
        output_tokens_details=OutputDetails(counts.reasoning),
    )


def _call_id(id: str) -> str:
    return "toolu_" + id.removeprefix("call_")


def _input(call: Call) -> msgspec.Raw:
    """The arguments; empty for a call that was cut, as the stop reason says."""
    return msgspec.Raw(call.arguments.encode()) if call.complete else EMPTY
