"""A real server on loopback with a scripted engine, and ways to look into it from a test."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import uvicorn

from ftc.engine.client import EngineClient
from ftc.engine.messages import Stats
from ftc.serve.app import create_app
from ftc.serve.model import ServedModel, assemble
from ftc.serve.operation import Operation
from ftc.spec.chat import Chat, JsonInTags, Reasoning, XmlFunctions

DEMO = Path(__file__).parents[3] / "models" / "demo"
CHAT = Chat(stop=("<|im_end|>",), reasoning=Reasoning(), tools=(XmlFunctions(), JsonInTags()))
CASES = Path(__file__).parents[2] / "data" / "cases"

GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def demo_model(folder: Path = DEMO, context_tokens: int = 4096) -> ServedModel:
    """The embedded checkpoint as the server sees it, without its spec."""
    return assemble(folder, CHAT, context_tokens, ("demo",))


def case(id: str, **values: str) -> dict[str, Any]:
    """A recorded case; `$MODEL` becomes the served name."""
    (path,) = CASES.glob(f"{id}-*.json")
    text = path.read_text()
    for name, value in ({"MODEL": "demo"} | values).items():
        text = text.replace(f"${name}", value)
    return json.loads(text)


class Server:
    """Runs until the `with` is left. `url` has no trailing slash."""

    def __init__(
        self,
        folder: Path,
        script: dict[str, Any],
        model: ServedModel | None = None,
        wait: bool = True,
        operation: Operation | None = None,
        **client: Any,
    ) -> None:
        path = folder / "script.json"
        path.write_text(json.dumps({"tokenizer": str(DEMO), "decode_rate": 1000} | script))
        command = [sys.executable, "-X", "faulthandler", "-m", "ftc.engine.scripted", "--script", str(path)]
        self.model = model or demo_model()
        self.engine = EngineClient(command, **client)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._wait = wait
        self._loop = asyncio.new_event_loop()
        self.front = create_app(self.model, self.engine, operation=operation or Operation())
        self._server = uvicorn.Server(uvicorn.Config(self.front, log_level="warning", timeout_graceful_shutdown=2))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        if self._wait:
            self.on_loop(self.engine.ready())
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(15)
        assert not self._thread.is_alive()

    def on_loop(self, work: Coroutine[Any, Any, Any], within: float = 30.0) -> Any:
        """Runs a coroutine on the server's loop and waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def stats(self) -> Stats:
        return self.on_loop(self.engine.fresh_stats())

    def settled(self, within: float = 2.0) -> Stats:
        """Waits until nothing runs any more, in the engine and in the server's table."""
        until = time.monotonic() + within
        while True:
            stats = self.stats()
            if (stats.running, stats.queued, self.engine.in_flight) == (0, 0, 0):
                return stats
            assert time.monotonic() < until, f"still busy: {stats}, {self.engine.in_flight} in flight"
            time.sleep(0.01)

    def post(self, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
        """A request, of chat unless `path` says otherwise."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | options.pop("headers", {})
        url = f"{self.url}{path}"
        with httpx.Client(timeout=30, trust_env=False) as http:
            return http.post(url, content=content, headers=headers, **options)

    def ask(self, text: str, **fields: Any) -> httpx.Response:
        """A chat request of one user message."""
        return self.post({"model": "demo", "messages": [{"role": "user", "content": text}]} | fields)

    def events(self, body: dict[str, Any]) -> list[Any]:
        """All events of a stream, the last one '[DONE]' where it came."""
        response = self.post(body | {"stream": True})
        assert response.status_code == 200, response.text
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def named_events(self, body: dict[str, Any], path: str) -> list[tuple[str, Any]]:
        """All events of a stream whose events have names, each with its data."""
        response = self.post(body | {"stream": True}, path)
        assert response.status_code == 200, response.text
        found = []
        for block in response.text.split("\n\n")[:-1]:
            name, data = block.split("\n")
            assert name.startswith("event: ") and data.startswith("data: ")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return found

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self.engine.start()
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self.engine.stop(grace_s=0.0)
