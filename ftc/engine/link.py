"""The wire between server and engine: a length before each msgpack message, over one inherited socket."""

from __future__ import annotations

import asyncio
import ctypes
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterable

from ftc.engine.messages import FromEngine, Message, ToEngine, decode_from_engine, decode_to_engine, encode

# A prompt of a million tokens is about 5 MB of msgpack; a longer frame means that the two ends lost step.
FRAME_LIMIT_BYTES = 256 << 20
_HEADER = struct.Struct("<I")
_PR_SET_PDEATHSIG = 1


def frame(messages: Iterable[Message]) -> bytes:
    """The messages as bytes for the wire, each behind its length (uint32, little endian)."""
    parts: list[bytes] = []
    for message in messages:
        body = encode(message)
        parts += (_HEADER.pack(len(body)), body)
    return b"".join(parts)


class Frames:
    """Cuts a byte stream into frames; what is incomplete waits for the next bytes."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """The frames completed by `data`. Raises ValueError on a length over the limit."""
        self._pending += data
        frames: list[bytes] = []
        at = 0
        while len(self._pending) - at >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._pending, at)
            if size > FRAME_LIMIT_BYTES:
                raise ValueError(f"frame of {size} bytes, the limit is {FRAME_LIMIT_BYTES}")
            end = at + _HEADER.size + size
            if len(self._pending) < end:
                break
            frames.append(bytes(self._pending[at + _HEADER.size : end]))
            at = end
        del self._pending[:at]
        return frames


class Link:
    """The engine's end, for a synchronous loop. Owns `fd`; child processes do not inherit it."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._socket.set_inheritable(False)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._frames = Frames()

    def receive(self, timeout: float | None) -> list[ToEngine]:
        """All messages that have arrived; waits up to `timeout` seconds for the first (0: not at all, None: for ever).

        Raises EOFError when the server is gone, msgspec.ValidationError on a message that is not in the contract.
        """
        messages: list[ToEngine] = []
        wait = None if timeout is None else timeout * 1000
        while self._poll.poll(wait):
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError("the server closed the link")
            messages += map(decode_to_engine, self._frames.push(data))
            if messages or timeout is not None:
                wait = 0
        return messages

    def send(self, messages: list[FromEngine]) -> None:
        """Sends all at once; blocks while the server does not read. Raises EOFError when the server is gone."""
        if not messages:
            return
        try:
            self._socket.sendall(frame(messages))
        except ConnectionError as error:
            raise EOFError("the server closed the link") from error

    def close(self) -> None:
        self._socket.close()


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """From now on this process gets the signal when the process that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def attach(fd: int) -> Link:
    """The link of an engine process, which is killed when the server's process ends, even in mid-step."""
    die_with_parent()
    return Link(fd)


class ServerLink(asyncio.Protocol):
    """The server's end on an event loop: `deliver` gets the messages of each read; `closed` is called once at the end.

    `closed` gets the fault of the engine that made us hang up, or None when the engine itself did.
    """

    def __init__(self, deliver: Callable[[list[FromEngine]], None], closed: Callable[[str | None], None]) -> None:
        self._deliver, self._closed = deliver, closed
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._fault: str | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, deliver: Callable[[list[FromEngine]], None], closed: Callable[[str | None], None]
    ) -> ServerLink:
        """Takes over `end`, one side of a socket pair."""
        _, link = await asyncio.get_running_loop().create_connection(lambda: cls(deliver, closed), sock=end)
        return link

    def send(self, messages: list[ToEngine]) -> None:
        """Queues the messages; never blocks. Silent after the end: `closed` has told it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(messages))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._deliver([decode_from_engine(one) for one in self._frames.push(data)])
        except ValueError as error:  # msgspec.ValidationError and DecodeError are ValueErrors
            self._fault = f"the engine sent a message outside the contract: {error}"
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed(self._fault)
