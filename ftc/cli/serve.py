"""`ftc serve`: one model over HTTP, with its engine as a supervised child process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftc.cli.progress import Progress
from ftc.engine.client import EngineClient
from ftc.errors import EngineError, FtcError
from ftc.log import configure

if TYPE_CHECKING:
    import uvicorn

# Streams still open this long after a Ctrl-C are cut.
GRACE_S = 5


@click.command("serve")
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), help="Number format of activations.")
@click.option("--context", type=click.IntRange(min=16), help="Longest prompt and output, in tokens.")
@click.option("--spec", type=click.Path(path_type=Path), help="Your own spec file; it is run as code.")
@click.option("--name", help="Name that clients call the model by.")
def command(
    model: str, host: str, port: int, dtype: str | None, context: int | None, spec: Path | None, name: str | None
) -> None:
    """Serve MODEL: a checkpoint folder, a hub id, or `demo` for the embedded model."""
    configure()
    from ftc.weights.hub import locate

    with Progress() as progress:
        folder = locate(model, progress)
    engine = [sys.executable, "-X", "faulthandler", "-m", "ftc.runtime", "--model", str(folder)]
    for flag, value in (("--dtype", dtype), ("--context", context), ("--spec", spec)):
        engine += [flag, str(value)] if value is not None else []
    called = folder.resolve().name if Path(model).is_dir() else model
    names = tuple(one for one in (name, called) if one is not None)
    run(engine, folder, host=host, port=port, spec=spec, names=names)


def run(
    engine_command: list[str],
    folder: Path,
    *,
    host: str,
    port: int,
    spec: Path | None = None,
    names: tuple[str, ...] = (),
) -> None:
    """Listens, starts the engine, serves until a signal. Raises FtcError when address or checkpoint is no good."""
    with listen(host, port) as listening:
        asyncio.run(_serve(engine_command, folder, listening, host, spec, names))


def listen(host: str, port: int) -> socket.socket:
    """The bound socket. Raises FtcError naming address and flag."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise FtcError(
            f"cannot listen there: {error.strerror or error}",
            where="--host, --port",
            value=f"{host}:{port}",
            hint="choose another --port, or 0 for any free one",
        ) from error


async def _serve(
    engine_command: list[str],
    folder: Path,
    listening: socket.socket,
    host: str,
    spec: Path | None,
    names: tuple[str, ...],
) -> None:
    engine = EngineClient(engine_command)
    # Before the imports: the engine loads in its own process while this one reads 0.7 s of libraries.
    engine.start()
    await asyncio.sleep(0)
    try:
        import uvicorn

        from ftc.serve.app import create_app
        from ftc.serve.model import load_model

        served = load_model(folder, spec=spec, names=names)
        app = create_app(served, engine, host)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
        )
        server = uvicorn.Server(config)
        _stop_on_signals(server, app.drain)
        if served.template is None:
            click.echo(f"warning: {folder} has no chat template; chat requests will be refused", err=True)
        address = f"[{host}]" if ":" in host else host
        click.echo(f"listening on http://{address}:{listening.getsockname()[1]}")
        watching = asyncio.create_task(_watch(engine, server, served.name))
        await server.serve(sockets=[listening])
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    finally:
        await engine.stop(grace_s=0.0)
    if engine.failure is not None and engine.hello is None:
        raise EngineError(engine.failure)


def _stop_on_signals(server: uvicorn.Server, drain: Callable[[], None]) -> None:
    """The first Ctrl-C or SIGTERM lets streams end and takes nothing new, the second cuts them."""

    def stop() -> None:
        drain()
        server.force_exit = server.should_exit
        server.should_exit = True

    # uvicorn's own handlers raise the signal once more at its end, which would cut the engine's shutdown short.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _watch(engine: EngineClient, server: uvicorn.Server, name: str) -> None:
    """Shows the engine's progress until it is ready; ends the server when it cannot start."""
    with Progress() as progress:
        while engine.state == "starting":
            progress(engine.progress.phase, engine.progress.done, engine.progress.total)
            await engine.changed()
    if engine.state == "failed":
        server.should_exit = True
    elif engine.hello is not None:
        hello = engine.hello
        click.echo(f"ready: {name}, context {hello.context_tokens} tokens, {hello.dtype} on {hello.target}")
