"""From steps to the wire of responses: items that open, grow and close in numbered events, or the whole answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from msgspec import UNSET

from ftc.serve.admit.items import seal
from ftc.serve.admit.responses import ENCRYPTED, namespaced
from ftc.serve.errors import describe
from ftc.serve.generate import Counts, Job, Step
from ftc.serve.model import ServedModel
from ftc.serve.reply.tokens import logprob
from ftc.serve.schema.chat import TokenLogprob
from ftc.serve.schema.responses import (
    CallItem,
    ErrorBody,
    Incomplete,
    InputDetails,
    Item,
    MessageItem,
    OutputDetails,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponsesRequest,
    Usage,
)
from ftc.serve.sse import KEEP_ALIVE, event
from ftc.text.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallStart, joined


class ResponsesReply:
    """One answer in the making; the whole answer is what its events leave behind.

    `keep` is called with the answer when it is complete.
    """

    def __init__(self, asked: ResponsesRequest, model: ServedModel, keep: Callable[[Response], None]) -> None:
        self.id = f"resp_{secrets.token_hex(16)}"
        self.jobs: Sequence[Job] = ()
        self._model, self._keep = model, keep
        self._sealed = ENCRYPTED in (asked.include or ())
        self._number = 0
        self._started = False
        self._namespaced: dict[str, tuple[str, str]] | None = None
        self._item: Item | None = None  # the one that is open, the last of the output
        self._waiting: list[TokenLogprob] = []  # of tokens whose text has not come yet
        self._said: list[str] = []  # the text of the open item
        self._logprobs: list[TokenLogprob] = []  # and those of its tokens
        self.response = Response(
            id=self.id,
            created_at=int(time.time()),
            model=asked.model,
            status="in_progress",
            output=[],
            tools=asked.tools or [],
            tool_choice=asked.tool_choice or "auto",
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            store=asked.store is not False,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            previous_response_id=asked.previous_response_id,
            reasoning={"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            temperature=model.defaults.temperature if asked.temperature is None else asked.temperature,
            text={"format": {"type": "text"}},
            top_logprobs=asked.top_logprobs or 0,
            top_p=model.defaults.top_p if asked.top_p is None else asked.top_p,
            user=asked.user,
        )

    async def stream(self, steps: AsyncGenerator[tuple[int, Step], None]) -> AsyncGenerator[bytes, None]:
        """response.created, response.in_progress, the items one after another, response.completed or .incomplete."""
        try:
            async for _, step in steps:
                head = b"" if self._started else self._start()
                if written := head + self._take(step):
                    yield written
        finally:
            await steps.aclose()

    async def whole(self, steps: AsyncGenerator[tuple[int, Step], None]) -> Response:
        """The answer when it is complete."""
        try:
            async for _, step in steps:
                self._take(step)
        finally:
            await steps.aclose()
        return self.response

    def keep_alive(self) -> bytes:
        """A comment; before the first token the start comes instead, which clients wait for."""
        return KEEP_ALIVE if self._started else self._start()

    def broken(self, error: Exception) -> bytes:
        body = describe(error)[1]["error"]
        self.response.status = "failed"
        self.response.error = ErrorBody(body["code"] or body["type"], body["message"])
        head = b"" if self._started else self._start()
        return head + self._event("response.failed", response=self.response)

    def _start(self) -> bytes:
        self._started = True
        return self._event("response.created", response=self.response) + self._event(
            "response.in_progress", response=self.response
        )

    def _take(self, step: Step) -> bytes:
        entries = [logprob(self._model, one) for one in step.logprobs]
        self._waiting = [*self._waiting, *entries] if isinstance(self._item, MessageItem) else entries
        written = b"".join(self._write(one) for one in joined(step.events))
        if step.finish is not None:
            written += self._end(step)
        return written

    def _write(self, one: Event) -> bytes:
        match one:
            case ReasoningDelta(text):
                return self._to(ReasoningItem) + self._delta("response.reasoning_text.delta", text)
            case ContentDelta(text):
                opened = self._to(MessageItem)
                taken, self._waiting = self._waiting, []
                self._logprobs += taken
                return opened + self._delta("response.output_text.delta", text, logprobs=taken)
            case ToolCallStart(_, id, name):
                if self._namespaced is None:
                    self._namespaced = namespaced(self.response.tools)
                namespace, own = self._namespaced.get(name, (UNSET, name))
                return self._close() + self._open(CallItem(_id("fc"), id, own, "", "in_progress", namespace))
            case ToolCallDelta(_, text):
                self._said.append(text)
                return self._place("response.function_call_arguments.delta", delta=text)
        return self._close("completed")

    def _to(self, kind: type[MessageItem] | type[ReasoningItem]) -> bytes:
        """Opens an item of this kind, with its one part, unless one is open."""
        if isinstance(self._item, kind):
            return b""
        closed = self._close()
        if kind is MessageItem:
            part: Any = OutputText("", [], [])
            opened = self._open(MessageItem(_id("msg"), [], "in_progress"))
        else:
            part = ReasoningText("")
            opened = self._open(ReasoningItem(_id("rs"), [], [], "in_progress", None if self._sealed else UNSET))
        return closed + opened + self._place("response.content_part.added", content_index=0, part=part)

    def _open(self, item: Item) -> bytes:
        self._item = item
        self._said, self._logprobs = [], []
        self.response.output.append(item)
        return self._event("response.output_item.added", output_index=self._index, item=item)

    def _delta(self, name: str, text: str, **fields: Any) -> bytes:
        self._said.append(text)
        return self._place(name, content_index=0, delta=text, **fields)

    def _close(self, status: str | None = None) -> bytes:
        """Ends the item that is open: its part, then itself. A call that did not end by itself was cut."""
        item, text = self._item, "".join(self._said)
        if item is None:
            return b""
        written = b""
        item.status = status or ("incomplete" if isinstance(item, CallItem) else "completed")
        if isinstance(item, MessageItem):
            part = OutputText(text, [], self._logprobs)
            item.content = [part]
            written += self._place("response.output_text.done", content_index=0, text=text, logprobs=part.logprobs)
            written += self._place("response.content_part.done", content_index=0, part=part)
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            item.encrypted_content = seal(text) if self._sealed else UNSET
            written += self._place("response.reasoning_text.done", content_index=0, text=text)
            written += self._place("response.content_part.done", content_index=0, part=item.content[0])
        else:
            item.arguments = text
            written += self._place("response.function_call_arguments.done", name=item.name, arguments=text)
        written += self._event("response.output_item.done", output_index=self._index, item=item)
        self._item = None
        return written

    def _end(self, step: Step) -> bytes:
        is_cut = step.finish == "length"
        empty = b"" if self.response.output else self._to(MessageItem)
        closed = self._close("incomplete" if is_cut else None)
        response = self.response
        response.status = "incomplete" if is_cut else "completed"
        response.incomplete_details = Incomplete("max_output_tokens") if is_cut else None
        response.completed_at = None if is_cut else int(time.time())
        response.usage = _usage(step.counts)
        self._keep(response)
        return empty + closed + self._event(f"response.{response.status}", response=response)

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _place(self, name: str, /, **fields: Any) -> bytes:
        """An event of the item that is open."""
        assert self._item is not None
        return self._event(name, item_id=self._item.id, output_index=self._index, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        written = event({"type": name, "sequence_number": self._number, **fields}, name)
        self._number += 1
        return written


def _usage(counts: Counts) -> Usage:
    return Usage(
        input_tokens=counts.prompt,
        input_tokens_details=InputDetails(counts.cached),
        output_tokens=counts.completion,
        output_tokens_details=OutputDetails(counts.reasoning),
        total_tokens=counts.prompt + counts.completion,
    )


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"
