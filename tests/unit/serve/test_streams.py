"""Streams under bad conditions: silence, clients that leave, many at once, and an engine that dies."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ftc.errors import EngineError
from ftc.serve.connection import Connection
from ftc.serve.sse import EventStream
from tests.unit.serve.server import Server, case

ENDLESS = {"rules": [{"text": "</think>\n\n1 2 3 4 5 6 7 8 9", "endless": True}], "context_tokens": 100_000}


def counting(**fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": "Count"}], "max_tokens": 8000} | fields


def test_the_wire_of_a_stream(server: Server) -> None:
    response = server.ask("Say hi", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    blocks = response.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    assert all(block.startswith("data: {") for block in blocks[:-2])


def test_clients_that_close_a_stream_c082(tmp_path: Path) -> None:
    recorded = case("c082")["input"]
    with Server(tmp_path, ENDLESS) as server:
        before = server.settled()
        for _ in range(recorded["repeat"]):
            with httpx.stream("POST", f"{server.url}{recorded['path']}", json=recorded["json"], timeout=10) as response:
                lines = response.iter_lines()
                for _ in range(2 * recorded["close_after_chunks"]):
                    next(lines)
            after = server.settled(within=2.0)
        assert after.pools == before.pools
        # A request that went on would have had 8000 tokens.
        assert after.decode_tokens < 20 * 1000


def test_clients_that_close_a_whole_answer_c083(tmp_path: Path) -> None:
    with Server(tmp_path, ENDLESS) as server:
        before = server.settled()
        for _ in range(case("c083")["input"]["repeat"]):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}/v1/chat/completions", json=counting(), timeout=0.2)
            after = server.settled(within=2.0)
        assert after.pools == before.pools
        assert after.decode_tokens < 5 * 2000


def test_clients_that_leave_during_prefill_c084(tmp_path: Path) -> None:
    script = ENDLESS | {"prefill_rate": 5_000, "rules": [{"tail": "Probe", "text": "</think>\n\nfour"}]}
    with Server(tmp_path, script) as server:
        server.model.tokenizer.encode("warm")
        before = server.settled()
        for wait in (0.05, 0.3):
            with pytest.raises(httpx.ReadTimeout):
                body = counting(messages=[{"role": "user", "content": "word " * 3500}])
                httpx.post(f"{server.url}/v1/chat/completions", json=body | {"stream": True}, timeout=wait)
            after = server.settled(within=3.0)
            assert after.pools == before.pools
        assert after.decode_tokens == before.decode_tokens
        assert server.ask("Probe").json()["choices"][0]["message"]["content"] == "four"


def test_a_client_that_leaves_while_its_prompt_is_rendered_costs_the_engine_nothing(tmp_path: Path) -> None:
    with Server(tmp_path, ENDLESS) as server:
        body = json.dumps(counting(messages=[{"role": "user", "content": "word " * 3500}])).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
        time.sleep(0.3)
        assert server.settled().steps == 0


def test_sixty_four_streams_with_clients_leaving_at_random(tmp_path: Path) -> None:
    rules = [{"text": "</think>\n\n1 2 3 4 5 6 7 8 9", "repeat": 4}]
    script = {"rules": rules, "max_running": 32, "max_queued": 64, "decode_rate": 200}
    chance = random.Random(1)
    whole = ("1 2 3 4 5 6 7 8 9</think>\n\n" * 4).removesuffix("</think>\n\n")

    async def one(http: httpx.AsyncClient, url: str, until: float) -> list[str]:
        finished = []
        while time.monotonic() < until:
            leave_after = chance.choice([0, 1, 5, 20, 1000])
            said, lines = "", 0
            async with http.stream("POST", f"{url}/v1/chat/completions", json=counting(stream=True)) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    lines += 1
                    if lines > leave_after:
                        break
                    if line.startswith("data: {"):
                        said += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                else:
                    finished.append(said)
        return finished

    async def scenario(url: str) -> list[list[str]]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=20, limits=limits, trust_env=False) as http:
            return await asyncio.gather(*(one(http, url, time.monotonic() + 3) for _ in range(64)))

    with Server(tmp_path, script) as server:
        before, pid = server.settled(), server.engine.pid
        finished = [text for texts in asyncio.run(scenario(server.url)) for text in texts]
        after = server.settled(within=3.0)
        assert len(finished) > 10
        assert set(finished) == {whole}
        assert after.pools == before.pools
        assert (server.engine.pid, server.engine.restarts) == (pid, 0)
        assert asyncio.run_coroutine_threadsafe(_tasks(), server._loop).result() < 12


async def _tasks() -> int:
    return len(asyncio.all_tasks())


def test_an_engine_killed_in_flight_c086(tmp_path: Path) -> None:
    with Server(tmp_path, ENDLESS | {"max_running": 2}) as server:

        async def scenario() -> tuple[str, httpx.Response, str]:
            async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
                url = f"{server.url}/v1/chat/completions"
                started = asyncio.Event()

                async def stream() -> str:
                    text = ""
                    async with http.stream("POST", url, json=counting(stream=True)) as response:
                        async for line in response.aiter_lines():
                            text += f"{line}\n"
                            started.set()
                    return text

                streamed = asyncio.create_task(stream())
                await started.wait()
                whole = asyncio.create_task(http.post(url, json=counting()))
                await asyncio.sleep(0.1)
                queued = asyncio.create_task(http.post(url, json=counting(stream=True)))
                await asyncio.sleep(0.1)
                os.kill(server.engine.pid or 0, signal.SIGKILL)
                begin = time.monotonic()
                results = await streamed, await whole, (await queued).text
                assert time.monotonic() - begin < 5
                following = await http.post(url, json=counting(max_tokens=5))
                assert following.status_code == 200
                assert following.json()["usage"]["completion_tokens"] == 5
                return results

        streamed, whole, queued = asyncio.run(scenario())
        assert "SIGKILL" in json.loads(streamed.strip().split("\n")[-1].removeprefix("data: "))["error"]["message"]
        assert "[DONE]" not in streamed
        assert whole.status_code == 500 and whole.json()["error"]["code"] == "engine_failed"
        assert "engine_failed" in queued


def test_a_stalled_engine_c088(tmp_path: Path) -> None:
    rules = [{"tail": "Stall", "text": "1 2 3", "endless": True, "fault": {"stall_after": 5}}, {"text": "fine"}]
    with Server(tmp_path, {"rules": rules}, stall_s=0.6) as server:
        begin = time.monotonic()
        response = server.ask("Stall")
        assert response.status_code == 500 and "stalled" in response.text
        assert time.monotonic() - begin < 5
        assert server.ask("next").status_code == 200


def test_health_and_requests_while_loading_c087(tmp_path: Path) -> None:
    script = {"rules": [{"text": "fine"}], "load": {"seconds": 1.0, "phases": ["weights", "programs"]}}
    with Server(tmp_path, script, wait=False) as server:
        seen = set()
        while True:
            begin = time.monotonic()
            health = httpx.get(f"{server.url}/health", timeout=1)
            assert time.monotonic() - begin < 1
            if health.status_code == 200:
                break
            assert health.status_code == 503 and health.json()["status"] == "starting"
            seen.add((health.json()["phase"], health.json()["done"], health.json()["total"]))
            refusal = server.ask("x")
            if refusal.status_code != 200:
                assert refusal.status_code == 503 and refusal.headers["retry-after"] == "1"
                assert refusal.json()["error"]["code"] == "not_ready"
            assert time.monotonic() - begin < 1
            time.sleep(0.05)
        assert {phase for phase, _, _ in seen} >= {"weights", "programs"}
        assert server.ask("x").status_code == 200


def test_a_full_queue_is_429(tmp_path: Path) -> None:
    with Server(tmp_path, ENDLESS | {"max_running": 1, "max_queued": 1}) as server:

        async def scenario() -> list[int]:
            async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
                url = f"{server.url}/v1/chat/completions"
                answers = await asyncio.gather(*(http.post(url, json=counting(max_tokens=300)) for _ in range(5)))
                assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
                return sorted(answer.status_code for answer in answers)

        assert asyncio.run(scenario()) == [200, 200, 429, 429, 429]
        # One of several choices that finds no place ends the whole request, and the others with it.
        assert server.ask("x", n=5, max_tokens=8000).status_code == 429
        server.settled()


class Wire:
    """An ASGI connection that records what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gone = asyncio.Event()

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message.get("body", b"") if message["type"] == "http.response.body" else b"START")


def test_silence_is_filled_with_comments() -> None:
    async def slow() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.25)
        yield b"data: 1\n\n"
        await asyncio.sleep(0.25)
        yield b"data: 2\n\n"

    async def scenario() -> list[bytes]:
        wire = Wire()
        stream = await EventStream.start(slow(), Connection(wire.receive), quiet_s=0.1)
        await stream({}, wire.receive, wire.send)  # type: ignore[typeddict-item]
        return wire.sent

    sent = asyncio.run(scenario())
    alive = b": keep-alive\n\n"
    assert [one for one in sent if one != alive] == [b"START", b"data: 1\n\n", b"data: 2\n\n", b""]
    assert sent.index(b"data: 1\n\n") >= 2 and sent.count(alive) in (2, 3, 4)


@pytest.mark.parametrize("late", [False, True])
def test_an_error_is_raised_before_the_start_and_an_event_after_it(late: bool) -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        if late:
            yield b"data: 1\n\n"
        raise EngineError("it broke")

    async def scenario() -> list[bytes]:
        wire = Wire()
        stream = await EventStream.start(broken(), Connection(wire.receive))
        await stream({}, wire.receive, wire.send)  # type: ignore[typeddict-item]
        return wire.sent

    if late:
        assert b'"it broke"' in asyncio.run(scenario())[-2]
    else:
        with pytest.raises(EngineError):
            asyncio.run(scenario())


def test_a_client_that_leaves_closes_the_source() -> None:
    closed = False

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal closed
        try:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0.01)
        finally:
            closed = True

    async def scenario() -> None:
        wire = Wire()
        stream = await EventStream.start(endless(), Connection(wire.receive))
        task = asyncio.create_task(stream({}, wire.receive, wire.send))  # type: ignore[typeddict-item]
        await asyncio.sleep(0.05)
        wire.gone.set()
        await asyncio.wait_for(task, 0.5)

    asyncio.run(scenario())
    assert closed
