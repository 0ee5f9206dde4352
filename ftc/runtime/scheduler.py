"""What runs next: who is let in, whose prompt goes on, when all others get their next token, and who must give way.

Decode steps and the calls of one prompt chunk take turns: a decode step runs whenever about the time of one has passed
since the last, so that an arriving prompt halves the speed of the others at worst and still gets ahead itself.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftc import log
from ftc.engine.messages import Finish, FromEngine, Logprob, Submit, Tokens
from ftc.engine.refusal import TooLongError
from ftc.errors import EngineError, OverloadError, RequestError
from ftc.runtime.batch import Batch
from ftc.runtime.plan import PAGE_TOKENS, Plan, pages_for
from ftc.runtime.pools import Pools
from ftc.runtime.request import Mask, Request, check
from ftc.runtime.sampler import Draw, Sampler

if TYPE_CHECKING:
    from ftc.compile.program import Execution, Program
    from ftc.compile.programs import Programs
    from ftc.trace.inputs import Shape

# How long a prompt may keep the engine from its messages while nobody decodes.
QUIET_S = 0.01

_log = log.logger("engine")


@dataclass
class _Chunk:
    """The part of a prompt under way: `count` tokens; after the `last` one the next token can be drawn."""

    request: Request
    count: int
    last: bool
    batch: Batch
    execution: Execution


class Scheduler:
    """Holds all requests of an engine and moves them on, a `step` at a time; what comes of them is in what `step` returns.

    Requests are served by priority, the greater first, then in the order they came. A page is taken when a token needs it;
    when there is none left, the last in that order gives up all its pages and is computed again later.
    """

    def __init__(
        self,
        programs: Programs,
        pools: Pools,
        plan: Plan,
        vocab: int,
        max_queued: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.programs, self.pools, self.plan = programs, pools, plan
        self.waiting: list[Request] = []  # by rank
        self.running: list[Request] = []  # in the order they were let in, which is the order of their rows
        self.steps = self.prefill_tokens = self.decode_tokens = self.preemptions = 0
        self._vocab, self._max_queued, self._clock = vocab, max_queued, clock
        self._by_id: dict[str, Request] = {}
        self._arrivals = 0
        self._chunk: _Chunk | None = None
        self._batches: dict[Shape, Batch] = {}
        self._rows = max(programs.decode_rows)
        # One per group of rows that is decoded together, and the last for the ends of prompts.
        self._samplers = [Sampler(self._rows, vocab) for _ in range(0, plan.max_running, self._rows)]
        self._chunk_sampler = Sampler(1, vocab)
        self._decode_s = 0.0
        self._events: list[FromEngine] = []

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or running, or something is still to be told."""
        return bool(self._by_id or self._events)

    @property
    def context_tokens(self) -> int:
        """The longest prompt + output of one request, as the pages stand now."""
        return min(self.plan.context_tokens, self.pools.pages.live * PAGE_TOKENS)

    def submit(self, submit: Submit, mask: Mask | None = None) -> None:
        """Takes a request into the queue. Raises RequestError, TooLongError or OverloadError when it is not taken."""
        if submit.id in self._by_id:
            raise RequestError("a request of this id is in flight", where="id", value=submit.id)
        check(submit, self._vocab)
        count, context = len(submit.tokens), self.context_tokens
        if count >= context:
            raise TooLongError(
                f"the prompt has {count} tokens and the context is {context}, prompt and output together", where="tokens"
            )
        if len(self._by_id) >= self.plan.max_running + self._max_queued:
            raise OverloadError(f"{len(self.running)} requests are running and {len(self.waiting)} are waiting")
        request = Request(submit, self._arrivals, self._clock(), mask)
        self._arrivals += 1
        self._by_id[request.id] = request
        insort(self.waiting, request, key=_rank)

    def abort(self, id: str) -> None:
        """Ends a request wherever it is; what it held is free at once. Unknown ids are ignored."""
        if (request := self._by_id.get(id)) is not None:
            self._end(request, "abort")

    def fail_all(self, error: str) -> None:
        """Ends every request with this error."""
        for request in list(self._by_id.values()):
            self._end(request, "error", error=error)

    def resize(self, name: str, live: int) -> None:
        """Gives or takes memory, with requests and a chunk under way. Raises EngineError when that cannot be."""
        moves = self.pools.resize(name, live)
        if not moves:
            return
        for request in self.running:
            if name == "pages":
                request.pages = [moves.get(page, page) for page in request.pages]
            else:
                request.slot = moves.get(request.slot, request.slot)
        if self._chunk is not None:
            self._chunk.batch.move_chunk(self._chunk.request)

    def step(self) -> list[FromEngine]:
        """A decode step of all that are ready, then as much of the next prompt as takes about the same time.

        The messages include what abort and fail_all left since the last step.
        """
        self.steps += 1
        self._expire()
        self._admit()
        self._poll()
        decoded = self._decode()
        self._prefill(self._clock() + (self._decode_s if decoded else QUIET_S))
        events, self._events = self._events, []
        return events

    def _expire(self) -> None:
        now = self._clock()
        for request in [r for r in self._by_id.values() if r.limit <= now]:
            self._end(request, "abort")

    def _admit(self) -> None:
        """Lets requests in while there is a row, a slot, and pages for all they have so far."""
        pages, slots = self.pools.pages, self.pools.slots
        while self.waiting and len(self.running) < self.plan.max_running:
            request = self.waiting[0]
            need = pages_for(len(request.tokens))
            if need > pages.live:
                self._end(request, "error", error=f"the request needs {need} pages, of which there are {pages.live} now")
                continue
            # One page more than needed while others run: they would take it at once, and this one would have to go again.
            if pages.free < need + bool(self.running) or not slots.free:
                return
            self.running.append(self.waiting.pop(0))
            request.pages = pages.allocate(need) or []
            (request.slot,) = slots.allocate(1) or [-1]

    def _poll(self) -> None:
        # A chunk under way keeps the regions it began with.
        if self._chunk is None:
            self.programs.poll()

    def _decode(self) -> bool:
        """Draws the next token of every request whose prompt is complete; whether there was one."""
        began = self._clock()
        for request in sorted((r for r in self.running if r.pending == 1), key=_rank):
            self._grow(request)
        ready = [r for r in self.running if r.pending == 1]
        for sampler, first in zip(self._samplers, range(0, len(ready), self._rows), strict=False):
            group = ready[first : first + self._rows]
            try:
                program = self.programs.decode(len(group))
                self._batch(program).fill_decode(group)
                logits = program.start().run()
                assert logits is not None
                self._check_faults()
                draws = sampler.draw(logits, group)
            except Exception as error:
                self._fail(group, error)
            else:
                for request, draw in zip(group, draws, strict=True):
                    request.computed += 1
                    self._accept(request, draw)
        if ready:
            self._decode_s += (self._clock() - began - self._decode_s) / 4
        return bool(ready)

    def _grow(self, request: Request) -> None:
        """A page for the pending token, if need be from the last in rank, which may be the request itself."""
        while request.slot >= 0 and len(request.pages) * PAGE_TOKENS <= request.computed:
            if page := self.pools.pages.allocate(1):
                request.pages += page
            elif len(self.running) > 1:
                self._put_back(max(self.running, key=_rank))
            else:
                self._end(request, "error", error="the memory that this request needs was taken away")

    def _put_back(self, request: Request) -> None:
        _log.debug("No page is left: %s gives up %d and waits.", request.id, len(request.pages))
        self._release(request)
        self.preemptions += 1
        insort(self.waiting, request, key=_rank)

    def _prefill(self, until: float) -> None:
        """Runs calls of prompt chunks, one at least, until the time is over or no prompt is left."""
        while chunk := self._chunk or self._next_chunk():
            try:
                more = chunk.execution.advance()
                self._check_faults()
                if not more:
                    self._finish(chunk)
            except Exception as error:
                self._fail([chunk.request], error)
            if self._clock() >= until:
                return

    def _next_chunk(self) -> _Chunk | None:
        request = min((r for r in self.running if r.pending > 1), key=_rank, default=None)
        if request is None:
            return None
        self._poll()
        program = self.programs.prefill(request.pending)
        count = min(request.pending, program.shape.rows)
        last = count == request.pending
        batch = self._batch(program)
        batch.fill_chunk(request, count)
        self._chunk = _Chunk(request, count, last, batch, program.start(logits=last))
        return self._chunk

    def _finish(self, chunk: _Chunk) -> None:
        request, self._chunk = chunk.request, None
        self.prefill_tokens += chunk.count
        request.computed += chunk.count
        if chunk.last:
            assert chunk.execution.logits is not None
            (draw,) = self._chunk_sampler.draw(chunk.execution.logits, [request])
            self._accept(request, draw)

    def _check_faults(self) -> None:
        if faults := self.pools.take_faults():
            raise EngineError("kernels met pages or slots that are not live", value=faults)

    def _batch(self, program: Program) -> Batch:
        batch = self._batches.get(program.shape)
        if batch is None or batch.step is not program.step:
            batch = self._batches[program.shape] = Batch(program.shape, program.step)
        return batch

    def _accept(self, request: Request, draw: Draw) -> None:
        token = draw.token
        if token < 0:
            self._end(request, "error", error="no token can follow: all are barred, or the model's logits are not numbers")
            return
        if token in request.stop_ids and request.drawn >= max(request.min_tokens, len(request.forced)):
            self._end(request, "stop", stop_id=token)
            return
        request.tokens.append(token)
        self.decode_tokens += 1
        logprobs = [draw.logprob] if draw.logprob is not None else []
        if request.drawn >= request.max_tokens or len(request.tokens) >= self.context_tokens:
            self._end(request, "length", token, logprobs)
        else:
            self._events.append(Tokens(id=request.id, tokens=[token], logprobs=logprobs))

    def _fail(self, requests: list[Request], error: Exception) -> None:
        _log.error("a step failed; its requests end with an error: %s", ", ".join(r.id for r in requests), exc_info=error)
        for request in requests:
            self._end(request, "error", error=f"{type(error).__name__}: {error}")

    def _end(
        self,
        request: Request,
        finish: Finish,
        token: int | None = None,
        logprobs: list[Logprob] | None = None,
        *,
        stop_id: int | None = None,
        error: str | None = None,
    ) -> None:
        if request.slot >= 0:
            self._release(request)
        else:
            self.waiting.remove(request)
        del self._by_id[request.id]
        tokens = [] if token is None else [token]
        self._events.append(
            Tokens(id=request.id, tokens=tokens, logprobs=logprobs or [], finish=finish, stop_id=stop_id, error=error)
        )

    def _release(self, request: Request) -> None:
        """Takes a running request off its row, with all it holds; a chunk of it under way is dropped."""
        if self._chunk is not None and self._chunk.request is request:
            self._chunk = None
        self.running.remove(request)
        self.pools.pages.release(request.pages)
        self.pools.slots.release([request.slot])
        request.pages, request.slot, request.computed = [], -1, 0


def _rank(request: Request) -> tuple[int, int]:
    return request.rank
