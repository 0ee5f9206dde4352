"""What the server does with its engine: keeps one running, passes requests to it, and ends them when it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec

from ftc.engine.messages import (
    VERSION,
    Abort,
    Control,
    Failed,
    FromEngine,
    Hello,
    Progress,
    Refused,
    Stats,
    Submit,
    Tokens,
)
from ftc.engine.process import Process
from ftc.engine.refusal import NotReadyError, error_of
from ftc.errors import EngineError, FtcError, RequestError
from ftc.log import logger

State = Literal["starting", "ready", "failed", "stopped"]

# An engine that lived this long was sound: its next restart is immediate again.
SOUND_S = 60.0
BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)

_log = logger("engine")


class EngineClient:
    """A supervised engine process and the requests in flight on it; lives on one event loop.

    `command` starts an engine when `--fd N` is added. `stall_s`: an engine that holds requests and says nothing for so
    long is killed and restarted. `restart_wait_s`: how long a new request waits for an engine that is being restarted.
    """

    def __init__(self, command: list[str], *, stall_s: float = 60.0, restart_wait_s: float = 30.0) -> None:
        self.state: State = "starting"
        self.progress = Progress(phase="starting the engine")
        self.hello: Hello | None = None
        self.stats: Stats | None = None
        self.failure: str | None = None
        self.restarts = 0
        self._command = command
        self._stall_s, self._restart_wait_s = stall_s, restart_wait_s
        self._process: Process | None = None
        self._inboxes: dict[str, _Inbox] = {}
        self._heard = time.monotonic()
        self._stats_waiters: list[asyncio.Future[Stats]] = []
        self._change: asyncio.Event = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def in_flight(self) -> int:
        """Requests that the engine has not yet finished, those abandoned by their caller included."""
        return len(self._inboxes)

    def start(self) -> None:
        """Starts the engine and its supervision; returns at once."""
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def ready(self) -> Hello:
        """Waits until requests can be served. Raises EngineError with the engine's own text when it cannot start."""
        while self.state != "ready":
            if self.state in ("failed", "stopped"):
                raise EngineError(self.failure or "the engine was stopped")
            await self.changed()
        assert self.hello is not None
        return self.hello

    async def changed(self) -> None:
        """Waits for the next change of `state` or `progress`."""
        await self._change.wait()

    async def submit(self, request: Submit) -> AsyncGenerator[Tokens, None]:
        """The answer as it comes; pieces that wait are merged. Closing the iterator early aborts the request.

        Raises RequestError (TooLongError) and OverloadError when the engine refuses, NotReadyError while it loads,
        EngineError when it fails, dies or stalls.
        """
        process = await self._serving()
        if request.id in self._inboxes:
            raise RequestError("a request of this id is in flight", where="id", value=request.id)
        if not self._inboxes:
            self._heard = time.monotonic()
        inbox = self._inboxes[request.id] = _Inbox()
        process.send([request])
        try:
            while True:
                piece = await inbox.take()
                if piece.finish == "error":
                    if piece.tokens:
                        yield msgspec.structs.replace(piece, finish=None)
                    raise EngineError(piece.error or "the engine failed on this request")
                yield piece
                if piece.finish is not None:
                    return
        finally:
            if not inbox.ended:
                self.abort(request.id)

    def abort(self, id: str) -> None:
        """Tells the engine to drop a request; nothing more of it is delivered. Unknown ids are ignored."""
        inbox = self._inboxes.get(id)
        if inbox is not None and not inbox.abandoned:
            inbox.abandon()
            if self._process is not None:
                self._process.send([Abort(id=id)])

    def control(self, control: Control) -> None:
        """Passes a control message on. Raises NotReadyError while there is no engine to take it."""
        if self.state != "ready" or self._process is None:
            raise NotReadyError(f"the engine is not ready: {self.progress.phase}")
        self._process.send([control])

    async def fresh_stats(self) -> Stats:
        """Asks for Stats and waits for them. Raises EngineError when the engine is not there or ends meanwhile."""
        waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self.control(Control(verb="stats"))
        self._stats_waiters.append(waiter)
        return await waiter

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new requests, gives those in flight `grace_s` seconds, then ends the process."""
        running, self.state = self.state, "stopped"
        self._announce()
        if running == "ready" and self._process is not None:
            self._process.send([Control(verb="drain")])
            limit = time.monotonic() + grace_s
            while self._inboxes and time.monotonic() < limit:
                await asyncio.sleep(0.02)
            self._process.send([Control(verb="stop")])
            if self._supervisor is not None:
                await asyncio.wait([self._supervisor], timeout=2.0)
        if self._process is not None:
            await self._process.kill("the server is stopping")
        if self._supervisor is not None:
            await asyncio.wait([self._supervisor], timeout=5.0)
            self._supervisor.cancel()

    async def _serving(self) -> Process:
        """The process to send to; waits for one that is being restarted, but not for the first load."""
        limit = time.monotonic() + (self._restart_wait_s if self.hello is not None else 0.0)
        while self.state != "ready":
            if self.state == "failed":
                raise EngineError(self.failure or "the engine failed")
            left = limit - time.monotonic()
            if self.state == "stopped":
                raise NotReadyError("the server is stopping")
            if left <= 0:
                raise NotReadyError(f"the engine is not ready: {self.progress.phase}", hint="GET /health tells when it is")
            try:
                await asyncio.wait_for(self.changed(), left)
            except TimeoutError:
                continue
        assert self._process is not None
        return self._process

    async def _supervise(self) -> None:
        failures = 0
        while self.state != "stopped":
            began = time.monotonic()
            why = await self._live_once()
            if self.state == "stopped":
                break
            was_ready = self.state == "ready"
            self._end_all(EngineError(why, hint="the engine is being restarted; send the request again"))
            if self.hello is None:
                self.state, self.failure = "failed", self.failure or f"{why} before it was ready"
                self._announce()
                return
            failures = 0 if was_ready and time.monotonic() - began > SOUND_S else failures
            delay = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
            failures += 1
            self.restarts += 1
            _log.error("%s; restarting it in %.1f s", self.failure or why, delay)
            self.state, self.progress = "starting", Progress(phase="restarting the engine")
            self._announce()
            await asyncio.sleep(delay)
        self._end_all(EngineError("the server is stopping"))

    async def _live_once(self) -> str:
        """One life of an engine process, from start to end; returns why it ended."""
        self.failure = None
        try:
            self._process = process = await Process.start(self._command, self._deliver)
        except OSError as error:
            return f"the engine cannot be started: {error}"
        if self.state == "stopped":  # stop() came while the process was being made
            await process.kill("the server is stopping")
        watchdog = asyncio.get_running_loop().create_task(self._watch(process))
        try:
            return await process.wait()
        finally:
            watchdog.cancel()
            self._process = None

    async def _watch(self, process: Process) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._stall_s / 4))
            silent = time.monotonic() - self._heard
            if self.state == "ready" and self._inboxes and silent > self._stall_s:
                last = self.stats
                _log.error(
                    "the engine sent nothing for %.0f s with %d requests in flight (last known: %s); its stacks follow",
                    silent,
                    len(self._inboxes),
                    f"step {last.steps}, {last.running} running, {last.queued} queued" if last else "no stats",
                )
                await process.kill(f"the engine stalled: it sent nothing for {silent:.0f} s", dump=True)
                return

    def _deliver(self, messages: list[FromEngine]) -> None:
        self._heard = time.monotonic()
        for message in messages:
            match message:
                case Tokens():
                    inbox = self._inboxes.get(message.id)
                    if inbox is not None:
                        inbox.put(message)
                        if message.finish is not None:
                            self._close(message.id)
                case Refused():
                    inbox = self._inboxes.get(message.id)
                    if inbox is not None:
                        self._close(message.id, error_of(message))
                case Stats():
                    self.stats = message
                    waiters, self._stats_waiters = self._stats_waiters, []
                    for waiter in waiters:
                        if not waiter.done():
                            waiter.set_result(message)
                case Progress():
                    if self.state == "starting":
                        self.progress = message
                        self._announce()
                case Hello():
                    self._greet(message)
                case Failed():
                    self.failure = message.text

    def _greet(self, hello: Hello) -> None:
        if hello.version != VERSION:
            self.failure = f"the engine speaks version {hello.version} of the contract, this server speaks {VERSION}"
            if self._process is not None:
                self._process.signal(9)
        elif self.state == "starting":
            self.hello, self.state = hello, "ready"
            self._announce()

    def _close(self, id: str, error: FtcError | None = None) -> None:
        self._inboxes.pop(id).end(error)

    def _end_all(self, error: EngineError) -> None:
        for id in list(self._inboxes):
            self._close(id, error)
        waiters, self._stats_waiters = self._stats_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _announce(self) -> None:
        event, self._change = self._change, asyncio.Event()
        event.set()


class _Inbox:
    """Pieces of one request that its reader has not taken yet."""

    def __init__(self) -> None:
        self.abandoned = False
        self.ended = False
        self._pieces: list[Tokens] = []
        self._error: FtcError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, piece: Tokens) -> None:
        if not self.abandoned:
            self._pieces.append(piece)
            self._wake()

    def abandon(self) -> None:
        self.abandoned = True
        self._pieces.clear()
        self._wake()

    def end(self, error: FtcError | None = None) -> None:
        self.ended = True
        self._error = error
        self._wake()

    async def take(self) -> Tokens:
        """What has come since the last call, as one piece. Raises what ended the request, after its last piece."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.abandoned:
                raise EngineError("the request was aborted")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else _merge(pieces)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _merge(pieces: list[Tokens]) -> Tokens:
    last = pieces[-1]
    return Tokens(
        id=last.id,
        tokens=[token for piece in pieces for token in piece.tokens],
        logprobs=[entry for piece in pieces for entry in piece.logprobs],
        cached=max(piece.cached for piece in pieces),
        finish=last.finish,
        stop_id=last.stop_id,
        error=last.error,
    )
