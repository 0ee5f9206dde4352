"""What happens to every HTTP request before any route: its id, its key, its origin, its line in the log, its count."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from ftc.engine.refusal import NotReadyError
from ftc.errors import FtcError
from ftc.log import logger
from ftc.serve.errors import UnauthorizedError, describe, describe_for_messages, speaks_messages
from ftc.serve.meter import Meter
from ftc.serve.operation import Operation

# Watchers of a server have no key, and still must see whether it lives.
OPEN_PATHS = frozenset({"/health", "/ready"})
QUIET_PATHS = OPEN_PATHS | {"/metrics"}
_METHODS = b"GET, POST, DELETE, OPTIONS"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ROUTES = re.compile(r"^/(v1/)?[a-z_]+(/(completions|count_tokens|input_items|cancel))?")

_log = logger("access")


class Front:
    """The outermost application. `drain` makes it refuse new work while what runs goes on."""

    def __init__(self, app: ASGIApp, operation: Operation, meter: Meter) -> None:
        self._app, self._operation, self._meter = app, operation, meter
        self.draining = False

    def drain(self) -> None:
        """From now on new requests get 503, and /ready says that this server is leaving."""
        self.draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(scope, send, self._operation.origins)
        begin = time.monotonic()
        self._meter.in_flight += 1
        try:
            await self._pass_on(request, scope, receive)
        finally:
            self._meter.in_flight -= 1
            self._meter.request(request.route, request.status)
            seconds = time.monotonic() - begin
            line = f"{request.id} {request.method} {request.path} {request.status} {seconds:.3f} s {request.sent} bytes"
            # Watchers ask every few seconds, which would bury the rest.
            _log.log(logging.DEBUG if request.path in QUIET_PATHS else logging.INFO, "%s", line)

    async def _pass_on(self, request: _Request, scope: Scope, receive: Receive) -> None:
        if request.is_preflight:
            await request.answer_preflight()
            return
        error: FtcError | None = None
        if request.path not in OPEN_PATHS:
            if not self._operation.admits(request.key()):
                error = UnauthorizedError("no valid API key was sent", where="Authorization", hint="send Bearer KEY")
            elif self.draining:
                error = NotReadyError("the server is stopping", hint="send the request to another one, or later")
        if error is not None:
            await request.refuse(error)
        else:
            await self._app(scope, receive, request.send)


class _Request:
    """One HTTP request as the front sees it, and the way its answer takes back."""

    def __init__(self, scope: Scope, send: Send, origins: tuple[str, ...]) -> None:
        self.method = str(scope.get("method", ""))
        self.path = str(scope.get("path", ""))
        self.status, self.sent = 0, 0
        self._send = send
        self._headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        given = self._headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        origin = self._headers.get("origin")
        self._origin = origin if origin is not None and ("*" in origins or origin in origins) else None

    @property
    def route(self) -> str:
        """The path without what differs from request to request: metrics need few names."""
        match = _ROUTES.match(self.path)
        return match.group() if match is not None and self.status not in (0, 404, 405) else "other"

    @property
    def is_preflight(self) -> bool:
        """Whether a page of a known origin asks what it may do."""
        return self.method == "OPTIONS" and self._origin is not None and "access-control-request-method" in self._headers

    def key(self) -> str | None:
        scheme, _, token = self._headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        return bearer or self._headers.get("x-api-key")

    async def send(self, message: Message) -> None:
        """Passes the application's answer on, with this request's own headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._own_headers()]
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
        await self._send(message)

    async def answer_preflight(self) -> None:
        asked = self._headers.get("access-control-request-headers", "*").encode("latin-1")
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", b"600"),
        ]
        await self._whole(204, headers, b"")

    async def refuse(self, error: FtcError) -> None:
        is_messages = speaks_messages(self.path, self._headers)
        status, body = (describe_for_messages if is_messages else describe)(error)
        headers = [(b"content-type", b"application/json")]
        headers.append((b"www-authenticate", b"Bearer") if status == 401 else (b"retry-after", b"1"))
        # The body of the request is not read.
        headers.append((b"connection", b"close"))
        await self._whole(status, headers, msgspec.json.encode(body))

    async def _whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        start: Any = {"type": "http.response.start", "status": status, "headers": headers}
        await self.send(start)
        end: Any = {"type": "http.response.body", "body": body, "more_body": False}
        await self.send(end)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        id = self.id.encode()
        # The two spellings that clients look for.
        headers = [(b"x-request-id", id), (b"request-id", id)]
        if self._origin is not None:
            headers += [
                (b"access-control-allow-origin", self._origin.encode("latin-1")),
                (b"access-control-expose-headers", b"x-request-id, request-id, retry-after"),
                (b"vary", b"origin"),
            ]
        return headers
