"""The command line: what it imports, and how errors and wrong usage look."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ftc.cli.main import COMMANDS


def ftc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ftc", *arguments], capture_output=True, text=True, timeout=60)


def test_help_lists_the_commands() -> None:
    result = ftc("--help")
    assert result.returncode == 0
    assert "serve" in result.stdout and "chat" in result.stdout
    assert set(COMMANDS) >= {"serve", "chat", "compile", "trace", "spec", "doctor"}


@pytest.mark.parametrize("command", ["serve", "chat"])
def test_help_of_a_command(command: str) -> None:
    assert f"ftc {command}" in ftc(command, "--help").stdout


def test_wrong_usage_is_exit_code_2_without_a_traceback() -> None:
    for arguments in (("nothing",), ("serve",), ("serve", "demo", "--port", "x")):
        result = ftc(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr and "Usage" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("serve", "/nowhere/at/all"), "/nowhere/at/all"), (("chat", "http://127.0.0.1:9"), "http://127.0.0.1:9")],
)
def test_an_error_is_one_message(arguments: tuple[str, ...], named: str) -> None:
    result = ftc(*arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert named in result.stderr and result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("module", ["torch", "litestar", "uvicorn", "httpx", "tokenizers", "huggingface_hub"])
def test_the_command_line_imports_no_heavy_library(module: str) -> None:
    code = f"import sys, ftc.cli.main, ftc.cli.serve, ftc.cli.chat; sys.exit(3 * ({module!r} in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_server_process_imports_no_torch() -> None:
    code = "import sys, ftc.serve.app, ftc.serve.model, uvicorn; sys.exit(3 * ('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
