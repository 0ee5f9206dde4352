"""One engine process: how it is started with a socket, and how it ends together with all it started."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable

from ftc.engine.link import ServerLink
from ftc.engine.messages import FromEngine, ToEngine

# Time between the link's end and the process's own end (and the other way round) before it is killed.
LINGER_S = 2.0
# Time faulthandler gets to print the stacks of a stalled engine before the kill.
DUMP_S = 1.0


class Process:
    """A running engine in a session of its own, so that a Ctrl-C at the terminal reaches the server alone."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._link: ServerLink | None = None
        self._closed = asyncio.Event()
        self._fault: str | None = None
        self._told: str | None = None

    @classmethod
    async def start(cls, command: list[str], deliver: Callable[[list[FromEngine]], None]) -> Process:
        """Runs `command --fd N`; its standard output goes to standard error. Raises OSError when it cannot be run."""
        ours, theirs = socket.socketpair()
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.__stderr__,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        process = cls(child)
        process._link = await ServerLink.open(ours, deliver, process._on_closed)
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, messages: list[ToEngine]) -> None:
        if self._link is not None:
            self._link.send(messages)

    def signal(self, number: int) -> None:
        """To the engine and whatever it started."""
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            pass

    async def kill(self, because: str, *, dump: bool = False) -> None:
        """Ends it now; `because` is what `wait` will tell. With `dump` the stacks of its threads are printed before."""
        self._told = because
        if dump:
            self._child.send_signal(signal.SIGABRT)
            await asyncio.wait([asyncio.ensure_future(self._child.wait())], timeout=DUMP_S)
        self.signal(signal.SIGKILL)

    async def wait(self) -> str:
        """Waits for the end of link or process, sees to the other one, and tells why, in words."""
        ends = [asyncio.ensure_future(self._closed.wait()), asyncio.ensure_future(self._child.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            # What it said last (Failed, the end of an answer) is still in the socket after its death: read to the end.
            await asyncio.wait(ends, timeout=LINGER_S)
        finally:
            for end in ends:
                end.cancel()
            self.signal(signal.SIGKILL)
            if self._link is not None:
                self._link.close()
        code = await self._child.wait()
        if told := self._told or self._fault:
            return told
        if code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"

    def _on_closed(self, fault: str | None) -> None:
        self._fault = fault
        self._closed.set()
