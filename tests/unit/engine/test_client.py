"""The supervisor: what callers see while an engine loads, serves, dies, stalls, refuses and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ftc.engine.client import EngineClient
from ftc.engine.messages import Control, Sampling, Submit, Tokens
from ftc.engine.refusal import NotReadyError, TooLongError
from ftc.errors import EngineError, OverloadError, RequestError

ENDLESS = {"tokens": [5, 6, 7], "endless": True}


def request(id: str, max_tokens: int = 4, tokens: list[int] | None = None, **fields: Any) -> Submit:
    return Submit(id=id, tokens=tokens or [1, 2, 3], sampling=Sampling(temperature=0.0), max_tokens=max_tokens, **fields)


@asynccontextmanager
async def running(folder: Path, wait: bool = True, client: dict[str, Any] | None = None, **script: Any) -> Any:
    path = folder / "script.json"
    path.write_text(json.dumps({"rules": [ENDLESS], "decode_rate": 500} | script))
    engine = EngineClient([sys.executable, "-m", "ftc.engine.scripted", "--script", str(path)], **(client or {}))
    engine.start()
    try:
        if wait:
            await engine.ready()
        yield engine
    finally:
        await engine.stop(grace_s=0.0)


async def collect(pieces: AsyncIterator[Tokens]) -> tuple[list[int], Tokens]:
    got = [piece async for piece in pieces]
    return [token for piece in got for token in piece.tokens], got[-1]


async def until(condition: Any, within: float = 3.0) -> None:
    limit = time.monotonic() + within
    while not condition():
        assert time.monotonic() < limit, "it did not come to that in time"
        await asyncio.sleep(0.01)


def test_answers_come_to_the_one_who_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as engine:
            answers = await asyncio.gather(*(collect(engine.submit(request(f"r{n}", n))) for n in range(1, 9)))
            assert [len(tokens) for tokens, _ in answers] == list(range(1, 9))
            assert engine.in_flight == 0

    asyncio.run(scenario())


def test_a_slow_reader_gets_merged_pieces_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, decode_rate=0) as engine:
            pieces = []
            async for piece in engine.submit(request("r", 1000, logprobs=1)):
                pieces.append(piece)
                await asyncio.sleep(0.01)
            tokens = [token for piece in pieces for token in piece.tokens]
            assert tokens == ([5, 6, 7] * 334)[:1000]
            assert [entry.token for piece in pieces for entry in piece.logprobs] == tokens
            assert len(pieces) < 100

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "cancel", "break"])
def test_a_caller_who_leaves_ends_the_request_in_the_engine(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as engine:

            async def read() -> None:
                async with aclosing(engine.submit(request("r", 4000))) as pieces:
                    async for _ in pieces:
                        if how != "cancel":
                            break

            task = asyncio.create_task(read())
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: engine.in_flight == 0, 1.0)
            assert (await engine.fresh_stats()).running == 0

    asyncio.run(scenario())


def test_refusals_are_the_errors_of_the_tree(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, context_tokens=64, max_running=1, max_queued=1) as engine:
            with pytest.raises(TooLongError, match="65 tokens.*64"):
                await collect(engine.submit(request("a", tokens=[1] * 65)))
            with pytest.raises(RequestError, match="vocabulary"):
                await collect(engine.submit(request("b", tokens=[-5])))
            busy = [asyncio.create_task(collect(engine.submit(request(f"c{n}", 40)))) for n in range(2)]
            await asyncio.sleep(0.03)
            with pytest.raises(OverloadError):
                await collect(engine.submit(request("d")))
            await asyncio.gather(*busy)
            assert len((await collect(engine.submit(request("e", 3))))[0]) == 3

    asyncio.run(scenario())


def test_a_killed_engine_ends_all_requests_and_the_next_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, max_running=1) as engine:
            held = [asyncio.create_task(collect(engine.submit(request(f"r{n}", 4000)))) for n in range(3)]
            await asyncio.sleep(0.1)
            pid = engine.pid
            os.kill(pid, signal.SIGKILL)
            for task in held:
                with pytest.raises(EngineError, match="SIGKILL"):
                    await asyncio.wait_for(task, 3)
            tokens, _ = await asyncio.wait_for(collect(engine.submit(request("next", 3))), 10)
            assert len(tokens) == 3
            assert engine.restarts == 1 and engine.pid != pid

    asyncio.run(scenario())


def test_a_stalled_engine_is_killed_with_its_stacks_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        rules = [{**ENDLESS, "fault": {"stall_after": 3}}]
        async with running(tmp_path, client={"stall_s": 0.6}, rules=rules) as engine:
            engine._command[1:1] = ["-X", "faulthandler"]
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.restarts == 1 and engine.state == "ready", 10)
            with pytest.raises(EngineError, match="stalled"):
                await asyncio.wait_for(collect(engine.submit(request("r", 40))), 5)
            assert len((await collect(engine.submit(request("s", 2))))[0]) == 2

    asyncio.run(scenario())
    assert "_misbehave" in capfd.readouterr().err


def test_an_idle_engine_is_not_called_stalled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, client={"stall_s": 0.3}) as engine:
            await asyncio.sleep(0.8)
            assert len((await collect(engine.submit(request("r", 2))))[0]) == 2
            assert engine.restarts == 0

    asyncio.run(scenario())


def test_progress_is_seen_and_requests_before_the_first_load_are_refused_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, wait=False, load={"seconds": 0.5, "phases": ["weights"]}) as engine:
            seen = set()
            while engine.state == "starting":
                await engine.changed()
                seen.add((engine.progress.phase, engine.progress.done, engine.progress.total))
                begin = time.monotonic()
                if engine.state == "starting":
                    with pytest.raises(NotReadyError):
                        await collect(engine.submit(request("early")))
                    assert time.monotonic() - begin < 0.1
            assert ("weights", 5, 10) in seen
            assert len((await collect(engine.submit(request("r", 2))))[0]) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("load", "text"),
    [({"fail": "model.safetensors: truncated"}, "model.safetensors: truncated"), ({"exit": 3}, "exit code 3")],
)
def test_a_failed_load_is_final_and_says_why(tmp_path: Path, load: dict[str, Any], text: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, wait=False, load=load) as engine:
            with pytest.raises(EngineError, match=text):
                await asyncio.wait_for(engine.ready(), 10)
            assert engine.state == "failed"
            with pytest.raises(EngineError, match=text):
                await collect(engine.submit(request("r")))

    asyncio.run(scenario())


def test_a_command_that_cannot_run_is_a_failed_load() -> None:
    async def scenario() -> None:
        engine = EngineClient(["/nowhere/python"])
        engine.start()
        with pytest.raises(EngineError, match="cannot be started"):
            await engine.ready()
        await engine.stop()

    asyncio.run(scenario())


def test_stop_lets_requests_finish_and_takes_no_new_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, decode_rate=200) as engine:
            held = asyncio.create_task(collect(engine.submit(request("r", 40))))
            await asyncio.sleep(0.05)
            pid = engine.pid
            stopping = asyncio.create_task(engine.stop())
            await asyncio.sleep(0.01)
            with pytest.raises(NotReadyError):
                await collect(engine.submit(request("late")))
            assert len((await held)[0]) == 40
            await stopping
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(scenario())


def test_an_engine_outside_the_contract_is_a_failure_that_says_so(tmp_path: Path) -> None:
    rogue = tmp_path / "rogue.py"
    rogue.write_text(
        "import socket, sys, time\nsocket.socket(fileno=int(sys.argv[-1])).sendall(b'\\x01\\0\\0\\0x')\ntime.sleep(60)"
    )

    async def scenario() -> None:
        engine = EngineClient([sys.executable, str(rogue)])
        engine.start()
        with pytest.raises(EngineError, match="outside the contract"):
            await asyncio.wait_for(engine.ready(), 10)
        await engine.stop()

    asyncio.run(scenario())


def test_control_reaches_the_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as engine:
            engine.control(Control(verb="drain"))
            with pytest.raises(OverloadError):
                await collect(engine.submit(request("r")))

    asyncio.run(scenario())


def test_an_engine_that_does_not_come_back_is_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, client={"restart_wait_s": 0.3}) as engine:
            path = tmp_path / "script.json"
            good = path.read_text()
            path.write_text(json.dumps({"rules": [], "load": {"fail": "the disk is gone"}}))
            os.kill(engine.pid, signal.SIGKILL)
            await until(lambda: engine.restarts >= 3, 8)
            with pytest.raises(NotReadyError):
                await collect(engine.submit(request("r")))
            path.write_text(good)
            await asyncio.wait_for(engine.ready(), 10)
            assert 3 <= engine.restarts <= 4
            assert len((await collect(engine.submit(request("s", 3))))[0]) == 3

    asyncio.run(scenario())
