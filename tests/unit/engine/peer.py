"""The server's side of the link as the contract describes it, written apart from ftc.engine.link."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import time
from types import TracebackType

from ftc.engine import messages
from ftc.engine.messages import FromEngine, Hello, Message, Refused, Sampling, Stats, Submit, Tokens

GREEDY = Sampling(temperature=0.0)


class Peer:
    """Starts `command --fd N` and talks to it; a context manager. Waits are in seconds and end with AssertionError."""

    def __init__(self, command: list[str]) -> None:
        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [*command, "--fd", str(theirs.fileno())], pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._bytes = b""
        self._count = 0
        self.early: list[FromEngine] = []

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def hello(self, within: float = 60.0) -> Hello:
        """Waits until the engine is ready; what came before is kept in `early`."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            message = self.receive(until - time.monotonic())
            if isinstance(message, Hello):
                return message
            assert message is not None, "the engine was not ready in time"
            self.early.append(message)
        raise AssertionError("the engine was not ready in time")

    def new_id(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def submit(self, tokens: list[int], max_tokens: int, sampling: Sampling = GREEDY, **fields: object) -> str:
        """Sends a Submit and returns its id."""
        id = self.new_id()
        self.send(Submit(id=id, tokens=tokens, sampling=sampling, max_tokens=max_tokens, **fields))  # type: ignore[arg-type]
        return id

    def send(self, *sent: Message) -> None:
        for message in sent:
            body = messages.encode(message)
            self.socket.sendall(struct.pack("<I", len(body)) + body)

    def receive(self, within: float) -> FromEngine | None:
        """The next message, or None when none comes in time. Raises EOFError when the engine hung up."""
        until = time.monotonic() + within
        while True:
            if len(self._bytes) >= 4:
                (size,) = struct.unpack_from("<I", self._bytes)
                if len(self._bytes) >= 4 + size:
                    body, self._bytes = self._bytes[4 : 4 + size], self._bytes[4 + size :]
                    return messages.decode_from_engine(body)
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                return None
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._bytes += data

    def answers(self, ids: list[str], within: float = 60.0) -> dict[str, list[Tokens | Refused]]:
        """All messages of these requests until each has ended; any other request's message is an error."""
        got: dict[str, list[Tokens | Refused]] = {id: [] for id in ids}
        waiting = set(ids)
        until = time.monotonic() + within
        while waiting:
            message = self.receive(until - time.monotonic())
            assert message is not None, f"no end of {sorted(waiting)} within {within} s"
            if isinstance(message, Stats):
                continue
            assert isinstance(message, Tokens | Refused), message
            assert message.id in waiting, f"a message for a request that is not in flight: {message}"
            got[message.id].append(message)
            if isinstance(message, Refused) or message.finish is not None:
                waiting.remove(message.id)
        return got

    def answer(self, id: str, within: float = 60.0) -> tuple[list[int], Tokens]:
        """Output tokens of one request and its last message; a refusal is an error."""
        pieces = self.answers([id], within)[id]
        assert all(isinstance(piece, Tokens) for piece in pieces), pieces
        last = pieces[-1]
        assert isinstance(last, Tokens)
        return [token for piece in pieces if isinstance(piece, Tokens) for token in piece.tokens], last

    def first_tokens(self, id: str, within: float = 60.0) -> Tokens:
        """Waits for the first message with tokens of a request."""
        until = time.monotonic() + within
        while True:
            message = self.receive(until - time.monotonic())
            assert message is not None, "no first token"
            if isinstance(message, Tokens) and message.id == id and message.tokens:
                return message

    def stats(self, within: float = 10.0) -> Stats:
        """Asks for Stats; messages of requests that come meanwhile are dropped."""
        self.send(messages.Control(verb="stats"))
        until = time.monotonic() + within
        while True:
            message = self.receive(until - time.monotonic())
            assert message is not None, "no stats"
            if isinstance(message, Stats):
                return message
