"""Which requests a browser's page on another site could have made: they are refused before they reach a route."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from litestar.types import ASGIApp, Receive, Scope, Send

from ftc.serve.errors import ForbiddenError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Checks Host and Origin.

    A server on loopback answers only to loopback names: a page whose own name was rebound to 127.0.0.1 sends that name
    as Host. On any other address the names are the owner's affair, and an Origin must be the very host asked. Pages of
    `origins` are the owner's affair too, wherever the server listens.
    """

    def __init__(self, app: ASGIApp, bound: str, origins: tuple[str, ...] = ()) -> None:
        self._app, self._bound, self._origins = app, bound, origins
        self._local = is_loopback(bound)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ForbiddenError naming the header."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            host = headers.get(b"host", b"").decode("latin-1")
            origin = headers.get(b"origin", b"").decode("latin-1")
            hint = "start the server with --host to use it under another name" if self._local else None
            if self._local and host and not self._known(f"//{host}"):
                raise ForbiddenError("not a name of this server", where="Host", value=host, hint=hint)
            if origin in self._origins or "*" in self._origins:
                origin = ""
            if origin and not (self._known(origin) if self._local else origin.partition("://")[2] == host):
                raise ForbiddenError("pages of other sites may not use this server", where="Origin", value=origin)
        await self._app(scope, receive, send)

    def _known(self, url: str) -> bool:
        try:
            name = urlsplit(url).hostname
        except ValueError:
            return False
        return name in LOOPBACK or name == self._bound or is_loopback(name or "")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
