"""`ftc chat` as a process: with piped input, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.serve.server import Server

RULES = [
    {"any": "Be brief.", "tail": "-rules-", "text": "</think>\n\nBrief."},
    {"any": "my name is Ada", "tail": "-again-", "text": "</think>\n\nYou are Ada."},
    {"tail": "-again-", "text": "</think>\n\nWho are you?"},
    {"tail": "endless", "text": "Hm.\n</think>\n\nOn and on and ", "endless": True},
    {"tail": "fail:", "text": "x", "fault": {"error_after": 0}},
    {"text": "Let me think.\n</think>\n\nHello there."},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = {"rules": RULES, "load": {"seconds": 0.3}, "context_tokens": 100_000, "decode_rate": 300}
    with Server(tmp_path_factory.mktemp("chat"), script, wait=False) as server:
        yield server


def chat(server: Server, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ftc", "chat", server.url, *options],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_one_turn_a_line_and_only_answers_are_printed(server: Server) -> None:
    result = chat(server, "hello\n\nhello\n")
    assert (result.returncode, result.stdout) == (0, "Hello there.\nHello there.\n")


def test_the_conversation_goes_on_until_it_is_reset(server: Server) -> None:
    text = "my name is Ada\n-again-\n/reset\n-again-\n-rules-\n/quit\nnever\n"
    result = chat(server, text, "--system", "Be brief.")
    assert result.stdout.split("\n") == ["Hello there.", "You are Ada.", "Who are you?", "Brief.", ""]


def test_help_and_unknown_commands(server: Server) -> None:
    result = chat(server, "/help\n/nonsense\n")
    assert "/reset" in result.stdout and "/nonsense" in result.stderr
    assert result.returncode == 0


def test_a_failed_turn_is_told_and_leaves_the_conversation_as_it_was(server: Server) -> None:
    result = chat(server, "fail: my name is Ada\n-again-\n")
    assert (result.returncode, result.stdout) == (1, "Who are you?\n")
    assert "error: " in result.stderr and "Traceback" not in result.stderr


def test_on_a_terminal_reasoning_is_dimmed_and_ctrl_c_stops_an_answer(server: Server) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ftc", "chat", server.url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = ""

    def until(pattern: str) -> None:
        nonlocal shown
        limit = time.monotonic() + 10
        while not re.search(pattern, shown, re.S):
            ready, _, _ = select.select([ours], [], [], max(0.0, limit - time.monotonic()))
            assert ready, f"{pattern!r} did not come: {shown!r}"
            shown += os.read(ours, 4096).decode()

    try:
        until("/help.*> ")
        os.write(ours, b"hello\n")
        until(r"\x1b\[2mLet me think\.\x1b\[0m\s+Hello there\.\s+> ")
        os.write(ours, b"endless\n")
        until("On and on and Hm")
        process.send_signal(signal.SIGINT)
        shown = ""
        until("> $")
        server.settled(2.0)
        os.write(ours, b"\x04")
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_server_that_cannot_start_ends_the_chat(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ftc", "chat", str(tmp_path)], input="x\n", capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 1
    assert result.stderr.count("config.json") == 1 and "Traceback" not in result.stderr
