"""From steps to the wire of text completions: chunks of a stream, or the whole answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET

from ftc.serve.errors import describe
from ftc.serve.generate import Counts, Job, Step
from ftc.serve.model import ServedModel
from ftc.serve.reply.tokens import token_text
from ftc.serve.schema.chat import CompletionDetails, PromptDetails
from ftc.serve.schema.completions import Choice, Completion, CompletionRequest, Logprobs, Usage
from ftc.serve.sse import DONE, KEEP_ALIVE, event
from ftc.text.events import ContentDelta


class CompletionReply:
    """Answers in the making, to one or several prompts."""

    def __init__(self, asked: CompletionRequest, model: ServedModel) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.jobs: Sequence[Job] = ()
        self._asked, self._model = asked, model
        self._created = int(time.time())
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        self._counts: dict[int, Counts] = {}
        self._lengths: dict[int, int] = {}  # characters of tokens so far, for offsets

    async def stream(self, steps: AsyncGenerator[tuple[int, Step], None]) -> AsyncGenerator[bytes, None]:
        """Chunks of text; the last of each choice has its finish reason."""
        try:
            async for index, step in steps:
                first = index not in self._counts
                self._counts[index] = step.counts
                text = (self._echoed(index) if first else "") + _text(step)
                entries = self._logprobs(index, step)
                if text or step.finish is not None or entries is not None:
                    yield self._chunk([Choice(index, text, _finish(step), entries)])
        finally:
            await steps.aclose()
        if self._with_usage:
            yield event(Completion(self.id, self._created, self._asked.model, [], usage=self._usage()))
        yield DONE

    async def whole(self, steps: AsyncGenerator[tuple[int, Step], None]) -> Completion:
        """The answer when it is complete."""
        choices: dict[int, Choice] = {}
        try:
            async for index, step in steps:
                self._counts[index] = step.counts
                choice = choices.setdefault(index, Choice(index, self._echoed(index)))
                choice.text += _text(step)
                choice.finish_reason = _finish(step)
                if (entries := self._logprobs(index, step)) is not None:
                    choice.logprobs = _add(choice.logprobs, entries)
        finally:
            await steps.aclose()
        ordered = [choices[index] for index in sorted(choices)]
        return Completion(self.id, self._created, self._asked.model, ordered, usage=self._usage())

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def broken(self, error: Exception) -> bytes:
        return event(describe(error)[1])

    def _echoed(self, index: int) -> str:
        return self._model.tokenizer.decode(self.jobs[index].prompt.tokens) if self._asked.echo else ""

    def _logprobs(self, index: int, step: Step) -> Logprobs | None:
        if self._asked.logprobs is None or not step.logprobs:
            return None
        entries = Logprobs([], [], [], [])
        offset = self._lengths.get(index, 0)
        for entry in step.logprobs:
            text = token_text(self._model, entry.token)[0]
            entries.tokens.append(text)
            entries.token_logprobs.append(entry.logprob)
            entries.top_logprobs.append({token_text(self._model, token)[0]: value for token, value in entry.top})
            entries.text_offset.append(offset)
            offset += len(text)
        self._lengths[index] = offset
        return entries

    def _chunk(self, choices: list[Choice]) -> bytes:
        usage = None if self._with_usage else UNSET
        return event(Completion(self.id, self._created, self._asked.model, choices, usage=usage))

    def _usage(self) -> Usage:
        """The prompt counts once for all its answers."""
        answers = self._asked.n or 1
        prompt = sum(len(job.prompt.tokens) for job in self.jobs[::answers])
        completion = sum(one.completion for one in self._counts.values())
        cached = sum(self._counts[at].cached for at in sorted(self._counts)[::answers])
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(cached),
            completion_tokens_details=CompletionDetails(0),
        )


def _text(step: Step) -> str:
    return "".join(one.text for one in step.events if isinstance(one, ContentDelta))


def _finish(step: Step) -> str | None:
    return "stop" if step.finish == "tool_calls" else step.finish


def _add(before: Logprobs | None, more: Logprobs) -> Logprobs:
    if before is None:
        return more
    return Logprobs(
        before.tokens + more.tokens,
        before.token_logprobs + more.token_logprobs,
        before.top_logprobs + more.top_logprobs,
        before.text_offset + more.text_offset,
    )
