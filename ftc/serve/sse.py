"""Server-sent events: how a stream starts, stays alive in silence, breaks off, and ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

from ftc.errors import FtcError
from ftc.log import logger
from ftc.serve.connection import ClientGone, Connection, cancel
from ftc.serve.errors import describe

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# Proxies and clients commonly give up after 30 to 60 s without a byte.
KEEP_ALIVE_S = 10.0

_encoder = msgspec.json.Encoder()
_log = logger("serve")


def event(value: Any, name: str | None = None) -> bytes:
    """One event with `value` as JSON, under a name where the API has names."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encoder.encode(value) + b"\n\n"


def _comment() -> bytes:
    return KEEP_ALIVE


def _error_event(error: Exception) -> bytes:
    return event(describe(error)[1])


class EventStream:
    """The response that sends `events`. Made by `start`; an ASGI app.

    `alive` gives what is sent after `quiet_s` without an event. An error after the start becomes a last event, made by
    `broken`; the stream then ends.
    """

    def __init__(
        self,
        first: asyncio.Task[bytes],
        events: AsyncGenerator[bytes, None],
        connection: Connection,
        quiet_s: float,
        alive: Callable[[], bytes],
        broken: Callable[[Exception], bytes],
    ) -> None:
        self._first, self._events, self._connection, self._quiet_s = first, events, connection, quiet_s
        self._alive, self._broken = alive, broken
        self._sent_at = 0.0

    @classmethod
    async def start(
        cls,
        events: AsyncGenerator[bytes, None],
        connection: Connection,
        quiet_s: float = KEEP_ALIVE_S,
        alive: Callable[[], bytes] = _comment,
        broken: Callable[[Exception], bytes] = _error_event,
    ) -> EventStream:
        """Waits for the first event, so that a refusal is still an HTTP error; but no longer than `quiet_s`."""
        first = asyncio.get_running_loop().create_task(_next(events))
        try:
            await asyncio.wait((first, connection.gone), timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                first.result()
            elif connection.gone.done():
                raise ClientGone
        except BaseException:
            await cancel(first)
            await events.aclose()
            raise
        return cls(first, events, connection, quiet_s, alive, broken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        pump = loop.create_task(self._pump(send))
        keeper = loop.create_task(self._keep_alive(send))
        try:
            await asyncio.wait((pump, self._connection.gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(pump, keeper, self._first)
            await self._events.aclose()
            self._connection.close()

    async def _pump(self, send: Send) -> None:
        try:
            await self._send(send, await self._first)
            async for one in self._events:
                await self._send(send, one)
        except FtcError as error:
            await self._send(send, self._broken(error))
        except Exception as error:
            _log.exception("a stream broke off")
            await self._send(send, self._broken(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at = asyncio.get_running_loop().time()

    async def _keep_alive(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left = self._sent_at + self._quiet_s - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._send(send, self._alive())


async def _next(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)
