"""Notices that the client has hung up, and stops the work that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


class Connection:
    """Watches one request's connection; made when its body has been read. Close it when the answer has been sent."""

    def __init__(self, receive: Receive) -> None:
        self.gone = asyncio.get_running_loop().create_task(_until_gone(receive))

    async def race(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; when the client leaves first, `work` is cancelled and ClientGone is raised."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait((task, self.gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            await cancel(task)

    def close(self) -> None:
        self.gone.cancel()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks and waits until each has cleaned up; their own results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
