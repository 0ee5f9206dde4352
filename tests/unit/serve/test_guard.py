"""Only loopback names reach a loopback server, and only its own pages a server on another address."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from ftc.serve.errors import ForbiddenError
from ftc.serve.guard import Guard, is_loopback
from tests.unit.serve.server import Server


def passes(bound: str, **headers: str) -> bool:
    reached = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal reached
        reached = True

    scope: Any = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    try:
        asyncio.run(Guard(app, bound)(scope, None, None))  # type: ignore[arg-type]
    except ForbiddenError:
        assert not reached
    return reached


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.0.0.9", "LOCALHOST:1", ""]
)
def test_loopback_names_pass(host: str) -> None:
    assert passes("127.0.0.1", host=host)
    assert passes("127.0.0.1", host=host, origin=f"http://{host or 'localhost'}")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "[", "192.168.0.4"]
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    assert not passes("127.0.0.1", host=host)
    assert not passes("::1", host=host)


@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example", "null", "http://["])
def test_pages_of_other_sites_are_refused(origin: str) -> None:
    assert not passes("127.0.0.1", host="localhost:8000", origin=origin)
    assert not passes("0.0.0.0", host="box.lan:8000", origin=origin)


def test_another_address_answers_to_any_name_and_to_its_own_pages() -> None:
    assert passes("0.0.0.0", host="box.lan:8000")
    assert passes("0.0.0.0", host="box.lan:8000", origin="http://box.lan:8000")
    assert not passes("0.0.0.0", host="box.lan:8000", origin="http://localhost:8000")


def test_what_counts_as_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.3.3.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


def test_the_server_refuses_a_rebound_name_on_every_route(server: Server) -> None:
    with httpx.Client(base_url=server.url, headers={"host": "evil.example"}, trust_env=False) as http:
        for answer in (http.get("/health"), http.get("/v1/models"), http.post("/v1/chat/completions", json={})):
            assert answer.status_code == 403
            assert answer.json()["error"]["param"] == "Host"
