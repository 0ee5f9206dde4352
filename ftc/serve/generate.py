"""One answer from job to events: submits it, turns tokens into text and text into events, and knows when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from ftc.engine.client import EngineClient
from ftc.engine.messages import Logprob, Sampling, Submit
from ftc.errors import EngineError
from ftc.serve.connection import cancel
from ftc.serve.model import ServedModel
from ftc.serve.prompt import Prompt
from ftc.spec.chat import Chat
from ftc.text.detokenize import Detokenizer
from ftc.text.events import Event, ReasoningDelta, ToolCallEnd
from ftc.text.parser import Parser


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to make, whichever API asked for it.

    `logprobs` as in Submit; `one_call` ends the answer after its first tool call; `plain` text is content as it is.
    """

    id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    tools: list[dict[str, Any]] | None = None
    tools_allowed: bool = True
    one_call: bool = False
    logprobs: int = -1
    plain: bool = False


class Counts(msgspec.Struct):
    """Tokens of one answer. `cached` is the part of the prompt that was not computed again."""

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


class Step(msgspec.Struct):
    """What became certain at once; the last one has `finish`: 'stop', 'length' or 'tool_calls'.

    `stop` is the stop string that ended the answer.
    """

    events: list[Event]
    logprobs: list[Logprob]
    counts: Counts
    finish: str | None = None
    stop: str | None = None


async def generate(engine: EngineClient, model: ServedModel, job: Job) -> AsyncGenerator[Step, None]:
    """The answer, step by step; closing it early aborts the request in the engine.

    Raises what EngineClient.submit raises, and EngineError when the engine gave the request up.
    """
    reader = _Reader(model, job)
    submit = Submit(
        id=job.id,
        tokens=job.prompt.tokens,
        sampling=job.sampling,
        max_tokens=job.max_tokens,
        min_tokens=job.min_tokens,
        stop_ids=list(job.stop_ids),
        logprobs=job.logprobs,
    )
    async with aclosing(engine.submit(submit)) as pieces:
        async for piece in pieces:
            if piece.finish == "abort":
                raise EngineError("the engine gave the request up")
            reader.counts.cached = max(reader.counts.cached, piece.cached)
            # With logprobs each token is its own step, so that they stand beside their own text.
            size = 1 if piece.logprobs else len(piece.tokens)
            for at in range(0, max(1, len(piece.tokens)), max(1, size)):
                step = reader.read(piece.tokens[at : at + size], piece.logprobs[at : at + size])
                if step.finish is None and piece.finish is not None and at + size >= len(piece.tokens):
                    reader.end(step, piece.finish)
                yield step
                if step.finish is not None:
                    return


class _Reader:
    """Reads the tokens of one answer, each for itself: where it ends may not depend on how many came at once."""

    def __init__(self, model: ServedModel, job: Job) -> None:
        self.counts = Counts(prompt=len(job.prompt.tokens))
        self._one_call = job.one_call
        self._reasoning = job.prompt.in_reasoning
        self._detokenizer = Detokenizer(model.tokenizer, keep=() if job.plain else model.mark_ids)
        if job.plain:
            self._parser = Parser(Chat(), None, stops=job.stops)
        else:
            self._parser = Parser(
                model.chat,
                model.syntax,
                job.tools,
                job.tools_allowed,
                job.prompt.in_reasoning,
                job.stops,
            )

    def read(self, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Step:
        step = Step(events=[], logprobs=[], counts=self.counts)
        for at, token in enumerate(tokens):
            self.counts.completion += 1
            step.logprobs += logprobs[at : at + 1]
            events = self._parser.push(text) if (text := self._detokenizer.push((token,))) else []
            if events:
                self._reasoning = isinstance(events[-1], ReasoningDelta)
            self.counts.reasoning += self._reasoning
            step.events += events
            one_call = self._one_call and any(isinstance(one, ToolCallEnd) for one in events)
            if one_call or self._parser.stop_hit is not None:
                self.end(step, "stop")
                break
        return step

    def end(self, step: Step, reason: str) -> None:
        """Completes the last step. `reason` is the engine's: 'stop' or 'length'."""
        self._detokenizer.flush()
        events, step.finish = self._parser.finish("length" if reason == "length" else "stop")
        step.events += events
        step.stop = self._parser.stop_hit


async def interleave(answers: Sequence[AsyncGenerator[Step, None]]) -> AsyncGenerator[tuple[int, Step], None]:
    """The steps of several answers as they come, each with its answer's index. The first error ends all."""
    if len(answers) == 1:
        async with aclosing(answers[0]) as only:
            async for step in only:
                yield 0, step
        return
    queue: asyncio.Queue[tuple[int, Step | BaseException | None]] = asyncio.Queue(maxsize=len(answers))

    async def pump(index: int) -> None:
        try:
            async with aclosing(answers[index]) as answer:
                async for step in answer:
                    await queue.put((index, step))
            await queue.put((index, None))
        except Exception as error:
            await queue.put((index, error))

    tasks = [asyncio.get_running_loop().create_task(pump(index)) for index in range(len(answers))]
    try:
        open_answers = len(tasks)
        while open_answers:
            index, got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                open_answers -= 1
            else:
                yield index, got
    finally:
        await cancel(*tasks)
