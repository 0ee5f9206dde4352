"""`ftc serve` as a process: what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ftc.cli.serve import listen
from ftc.errors import FtcError

DEMO = Path(__file__).parents[3] / "models" / "demo"
RUN = """
import sys
from pathlib import Path
from ftc.cli import main, serve
import click

@main.ftc.command("scripted")
@click.argument("script")
@click.argument("folder")
def scripted(script, folder):
    engine = [sys.executable, "-m", "ftc.engine.scripted", "--script", script]
    serve.run(engine, Path(folder), host="127.0.0.1", port=0, names=("demo",))

main.LazyGroup.get_command = lambda self, context, name: scripted
main.main(["scripted", *sys.argv[1:]])
"""


@contextlib.contextmanager
def serving(folder: Path, checkpoint: Path = DEMO, **script: Any) -> Iterator[subprocess.Popen[str]]:
    path = folder / "script.json"
    rules = [{"text": "</think>\n\n1 2 3", "endless": True}]
    path.write_text(json.dumps({"rules": rules, "decode_rate": 200, "tokenizer": str(DEMO)} | script))
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(path), str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on http://127.0.0.1:"), line
    return line.split()[-1]


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(process.pid).children()
    return child


def test_it_says_when_it_listens_and_when_it_is_ready_and_ends_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, load={"seconds": 2.0}) as process:
        begin = time.monotonic()
        url = url_of(process)
        assert httpx.get(f"{url}/health").status_code == 503
        assert process.stdout is not None and process.stdout.readline().startswith("ready: demo, context 4096 tokens")
        assert time.monotonic() - begin < 10
        assert httpx.get(f"{url}/health").status_code == 200
        engine = engine_of(process)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 0
        assert "weights" in stderr and "Traceback" not in stderr
        assert not engine.is_running()


def test_a_failed_load_ends_it_with_the_reason_told_once(tmp_path: Path) -> None:
    with serving(tmp_path, load={"fail": "model-00001.safetensors: 64 bytes are missing"}) as process:
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 1
        assert stderr.count("64 bytes are missing") == 1
        assert stderr.strip().split("\n")[-1] == "error: model-00001.safetensors: 64 bytes are missing"


def test_an_unreadable_tokenizer_ends_it_c087(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_bytes((DEMO / "config.json").read_bytes())
    (checkpoint / "tokenizer.json").write_text("{")
    with serving(tmp_path, checkpoint) as process:
        _, stderr = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "tokenizer.json" in stderr and "Traceback" not in stderr


def test_ctrl_c_lets_a_stream_end_only_so_long_and_takes_the_engine_along(tmp_path: Path) -> None:
    with serving(tmp_path, context_tokens=100_000) as process:
        url = url_of(process)
        assert process.stdout is not None and process.stdout.readline().startswith("ready")
        engine = engine_of(process)
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 50_000}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=10) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(httpx.RemoteProtocolError):
                for _ in lines:
                    pass
        process.communicate(timeout=10)
        assert process.returncode == 0
        assert not engine.is_running()


def test_a_killed_server_leaves_no_engine(tmp_path: Path) -> None:
    with serving(tmp_path) as process:
        url_of(process)
        engine = engine_of(process)
        os.kill(process.pid, signal.SIGKILL)
        engine.wait(3)


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FtcError, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
    with pytest.raises(FtcError, match="no.such.host.invalid"):
        listen("no.such.host.invalid", 0)
