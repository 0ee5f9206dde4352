"""`ftc chat`: a conversation in the terminal, with a running server or with one that lives as long as the chat."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from ftc import settings
from ftc.cli.progress import Progress
from ftc.engine.link import die_with_parent
from ftc.errors import EngineError, FtcError

HELP = """/reset  forget the conversation
/help   this list
/quit   leave (also Ctrl-D); Ctrl-C stops an answer"""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
POLL_S = 0.1


@click.command("chat")
@click.argument("target", default="demo")
@click.option("--system", help="System prompt.")
def command(target: str, system: str | None) -> None:
    """Chat with TARGET: the URL of a server, or a model, for which a server is started (default: the embedded model).

    Input that is not a terminal is read as one turn a line; only the answers are printed then.
    """
    with contextlib.ExitStack() as stack:
        is_url = target.startswith(("http://", "https://"))
        url = target if is_url else stack.enter_context(server(target))
        url = url.rstrip("/").removesuffix("/v1")
        # Imported here: 0.2 s that a wrong command line does not wait for.
        import httpx

        keys = settings.api_keys()
        headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
        timeout = httpx.Timeout(10, read=60)
        http = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False))
        try:
            wait_until_ready(http)
            chat = Chat(http, system)
        except httpx.HTTPError as error:
            raise EngineError(f"no server answers there: {error}", where=url) from error
        if not chat.converse():
            sys.exit(1)


@contextlib.contextmanager
def server(model: str) -> Iterator[str]:
    """The URL of a server child on `model`, ready, on a free port; it shows its own progress, and stops at the end."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ftc", "serve", model, "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=settings.environment(FTC_LOG="warning"),
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    try:
        assert child.stdout is not None
        url = ""
        for line in child.stdout:
            url = line.split()[-1] if line.startswith("listening on ") else url
            if line.startswith("ready"):
                break
        else:
            # It has told on stderr why.
            sys.exit(child.wait() or 1)
        yield url
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def wait_until_ready(http: Any) -> None:
    """Shows what the server does until it is ready. Raises EngineError when it failed."""
    with Progress() as progress:
        while (answer := http.get("/health")).status_code == 503:
            health = answer.json()
            if health["status"] == "failed":
                raise EngineError(f"the server failed: {health['phase']}")
            progress(health["phase"], health["done"], health["total"])
            time.sleep(POLL_S)


class Chat:
    """One conversation. Answers are shown as they come, reasoning dimmed on a terminal and left out elsewhere."""

    def __init__(self, http: Any, system: str | None) -> None:
        self._http = http
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, Any]] = list(self._start)
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def converse(self) -> bool:
        """Until the input ends; whether every turn got its answer."""
        if self._terminal:
            click.echo(f"Chatting with {self._model}. /help lists the commands.")
        good = True
        for line in self._lines():
            match line.strip():
                case "":
                    continue
                case "/quit":
                    break
                case "/reset":
                    self._messages = list(self._start)
                case "/help":
                    click.echo(HELP)
                case text if text.startswith("/") and " " not in text:
                    click.echo(f"no such command: {text}; /help lists them", err=True)
                case text:
                    good &= self._turn(text)
        return good

    def _lines(self) -> Iterator[str]:
        if not self._terminal:
            yield from sys.stdin
            return
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() a line editor and a history)
        while True:
            try:
                yield input("> ")
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                click.echo("  (/quit or Ctrl-D leaves)")

    def _turn(self, text: str) -> bool:
        import httpx

        asked = [*self._messages, {"role": "user", "content": text}]
        answer: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
        try:
            self._stream(asked, answer)
        except KeyboardInterrupt:
            # What was said stays in the conversation; closing the stream has ended the request.
            click.echo(PLAIN if self._terminal else "")
        except (httpx.HTTPError, FtcError) as error:
            click.echo(f"{PLAIN if self._terminal else ''}error: {error}", err=True)
            return False
        self._messages = [*asked, answer]
        return True

    def _stream(self, messages: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        from msgspec import json

        body = {"model": self._model, "messages": messages, "stream": True}
        dim = False
        with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise EngineError(json.decode(response.read())["error"]["message"])
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.decode(line.removeprefix("data: "))
                if "error" in event:
                    raise EngineError(event["error"]["message"])
                for choice in event["choices"]:
                    delta = choice["delta"]
                    reasoning, content = delta.get("reasoning_content", ""), delta.get("content") or ""
                    answer["reasoning_content"] += reasoning
                    answer["content"] += content
                    if self._terminal and bool(reasoning) != dim and (reasoning or content):
                        dim = bool(reasoning)
                        click.echo(DIM if dim else f"{PLAIN}\n\n", nl=False)
                    click.echo((reasoning if self._terminal else "") + content, nl=False)
        click.echo(PLAIN if dim else "")
