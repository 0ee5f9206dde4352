"""The scripted engine conforms, and its faults are the ones ordered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftc.engine.messages import Failed, Refused, Tokens
from tests.unit.engine.conformance import Conformance
from tests.unit.engine.peer import Peer

DEMO = Path(__file__).parents[3] / "models" / "demo"


def command_for(folder: Path, **script: Any) -> list[str]:
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    return [sys.executable, "-m", "ftc.engine.scripted", "--script", str(path)]


class TestConformance(Conformance):
    @pytest.fixture(scope="class")
    @classmethod
    def engine_command(cls, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
        folder = tmp_path_factory.mktemp("script")
        return command_for(
            folder, rules=[{"tokens": [5, 6, 7, 8], "endless": True}], decode_rate=2000, max_running=4, max_queued=8
        )


def test_rules_are_tried_in_order_on_the_prompts_text(tmp_path: Path) -> None:
    rules = [
        {"tail": "sum", "text": "4"},
        {"any": "name", "echo": True},
        {"draw": 5},
    ]
    with Peer(command_for(tmp_path, rules=rules, tokenizer=str(DEMO))) as peer:
        peer.hello()
        from ftc.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(DEMO)

        def say(text: str) -> str:
            tokens, last = peer.answer(peer.submit(tokenizer.encode(text), 100))
            assert last.finish == "stop"
            return tokenizer.decode(tokens)

        assert say("what is the sum") == "4"
        assert say("my name is Ada") == "my name is Ada"
        assert say("sum " + "long " * 90 + "end of it, my name") != "4"
        assert len(peer.answer(peer.submit(tokenizer.encode("other"), 100))[0]) == 5


def test_a_repeated_prompt_is_reported_as_cached(tmp_path: Path) -> None:
    with Peer(command_for(tmp_path, rules=[{"tokens": [1]}])) as peer:
        peer.hello()
        prompt = list(range(100))
        assert peer.answer(peer.submit(prompt, 4))[1].cached == 0
        assert peer.answer(peer.submit(prompt, 4))[1].cached == 96
        assert peer.answer(peer.submit(prompt, 4, salt="other"))[1].cached == 0


def test_it_dies_after_the_tokens_ordered(tmp_path: Path) -> None:
    with Peer(command_for(tmp_path, rules=[{"tokens": [1], "endless": True, "fault": {"die_after": 3}}])) as peer:
        peer.hello()
        id = peer.submit([1], 100)
        got = 0
        with pytest.raises(EOFError):
            while message := peer.receive(5):
                got += len(message.tokens) if isinstance(message, Tokens) and message.id == id else 0
        assert got == 3
        assert peer.process.wait(2) == -signal.SIGKILL


def test_it_stalls_after_the_tokens_ordered(tmp_path: Path) -> None:
    with Peer(command_for(tmp_path, rules=[{"tokens": [1], "endless": True, "fault": {"stall_after": 3}}])) as peer:
        peer.hello()
        peer.submit([1], 100)
        until, got = time.monotonic() + 1.0, 0
        while (message := peer.receive(max(0, until - time.monotonic()))) is not None:
            got += len(message.tokens) if isinstance(message, Tokens) else 0
        assert got == 3
        peer.process.kill()


def test_one_request_fails_and_the_next_does_not(tmp_path: Path) -> None:
    with Peer(command_for(tmp_path, rules=[{"tokens": [1], "repeat": 9, "fault": {"error_after": 2}}])) as peer:
        peer.hello()
        for _ in range(2):
            tokens, last = peer.answer(peer.submit([1], 100))
            assert (tokens, last.finish) == ([1, 1], "error")
            assert last.error


def test_a_duplicate_id_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with Peer(command_for(tmp_path, rules=[{"tokens": [1], "repeat": 50}], decode_rate=200)) as peer:
        peer.hello()
        id = peer.submit([1], 100)
        peer.first_tokens(id)
        peer._count = 0
        assert peer.submit([1], 100) == id
        while not isinstance(message := peer.receive(5), Refused):
            assert isinstance(message, Tokens) and message.finish is None
        assert message.code == "invalid"


@pytest.mark.parametrize(
    ("script", "named"),
    [({"rules": [{"texts": "x"}]}, "texts"), ({"rules": [], "tokenizer": "/nowhere"}, "/nowhere"), ({}, "rules")],
)
def test_a_bad_script_is_told_over_the_link(tmp_path: Path, script: dict[str, Any], named: str) -> None:
    with Peer(command_for(tmp_path, **script)) as peer:
        message = peer.receive(10)
        assert isinstance(message, Failed) and named in message.text
        assert peer.process.wait(5) == 1


def test_a_start_can_be_slow_and_can_fail(tmp_path: Path) -> None:
    load = {"seconds": 0.4, "phases": ["weights", "programs"], "fail": "shard 2 is truncated"}
    with Peer(command_for(tmp_path, rules=[], load=load)) as peer:
        phases = []
        while not isinstance(message := peer.receive(10), Failed):
            phases.append((message.phase, message.done, message.total))
        assert phases[0] == ("weights", 0, 10) and phases[-1] == ("weights", 10, 10)
        assert message.text == "shard 2 is truncated"


def test_it_needs_no_torch() -> None:
    code = "import sys, ftc.engine.scripted, ftc.engine.client; sys.exit(2 * ('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
