"""What README.md and docs/ say can be done: commands run, links lead somewhere."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.rules.documents import MARKS, Block, blocks, links, pages
from tests.rules.tree import ROOT, at, report

BLOCKS = [block for path in pages() for block in blocks(path)]
PORT = re.compile(r"--port (\d+)")


def where(block: Block) -> str:
    return at(block.path, block.line)


def marked(mark: str) -> list[Block]:
    return [block for block in BLOCKS if block.mark == mark]


def here(block: Block) -> str:
    """The block's text in the environment of the tests, which need not be the reader's .venv."""
    return block.text.replace(".venv/bin/", "")


def command(block: Block, text: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", text] if block.language == "bash" else [sys.executable, "-c", text]


def environment() -> dict[str, str]:
    """The reader's shell after set-up: `ftc` and `python` are those of the environment that runs the tests."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run_to_end(block: Block, text: str) -> None:
    done = subprocess.run(
        command(block, text), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{where(block)}:\n{text}\n{done.stdout}{done.stderr}"


@contextmanager
def server(text: str, port: int) -> Iterator[None]:
    """Runs `text` until the block below has ended; ready when /health answers 200."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {text.strip()}"], cwd=ROOT, env=environment(), start_new_session=True
    )
    try:
        limit = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"{text} ended with {process.returncode}"
            assert time.monotonic() < limit, f"{text} did not answer within 60 s"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=20)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_links_lead_somewhere():
    problems = []
    for path in pages():
        for line, target in links(path):
            if not (path.parent / target).exists():
                problems.append(f"{at(path, line)}: {target} does not exist")
    report(problems)


def test_marks_are_known():
    found = [b for b in BLOCKS if b.mark in MARKS or b.mark.startswith(("run", "with"))]
    report([f"{where(b)}: unknown mark {b.mark!r}" for b in found if b.language not in MARKS.get(b.mark, ())])


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "bash"], ids=where)
def test_bash_can_read_it(block: Block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", marked("run"), ids=where)
def test_command_runs(block: Block):
    run_to_end(block, here(block))


@pytest.mark.parametrize("start", marked("run: server"), ids=where)
def test_server_and_its_clients(start: Block):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (written,) = PORT.findall(start.text)
    clients = [block for block in marked("with server") if block.path == start.path]
    assert clients, f"{where(start)}: nothing on this page talks to the server"
    with server(here(start).replace(written, str(port)), port):
        for block in clients:
            run_to_end(block, here(block).replace(written, str(port)))


def test_the_reader_of_pages():
    text = "a\n<!-- run -->\n```bash\nls\n```\n\n```python\nx\n```\n<!-- run: server -->\n```bash\nftc serve\n```\n"
    assert [(b.line, b.language, b.mark, b.text) for b in blocks(ROOT / "README.md", text)] == [
        (4, "bash", "run", "ls\n"),
        (8, "python", "", "x\n"),
        (12, "bash", "run: server", "ftc serve\n"),
    ]
