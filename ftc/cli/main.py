"""The `ftc` command: which subcommands there are, and how an error reaches the user."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import click

from ftc import __version__
from ftc.errors import FtcError

# Command -> its help line; the code is in ftc/cli/NAME.py, which is imported when the command is run.
COMMANDS = {
    "serve": "Serve a model over HTTP.",
    "chat": "Chat in the terminal, with a server or with a model.",
    "compile": "Compile a model for this machine ahead of time.",
    "trace": "Show the graphs of a model, before and after passes.",
    "spec": "Show, check, compare or draft the spec of a model.",
    "doctor": "Say what machine this is and what is missing.",
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports one only when it is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"ftc.cli.{name}") is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(f"ftc.cli.{cmd_name}"), "command", None)
        assert isinstance(command, click.Command), f"ftc/cli/{cmd_name}.py has no `command`"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ftc")
def ftc() -> None:
    """Serves Mixture-of-Experts models that do not fit the GPU."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0, 1 after an error that is told in one message, 2 for wrong usage."""
    try:
        ftc.main(arguments, prog_name="ftc", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except FtcError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; there is nobody left to tell.
        sys.stderr.close()
        sys.exit(1)
