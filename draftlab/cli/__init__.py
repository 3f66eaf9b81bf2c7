"""Command line: one command, one library call. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from draftlab.cli import engine, grading, logs, online, policies, report
from draftlab.cli.options import BAD_INPUT
from draftlab.errors import InputError

GROUPS = {
    "Record": ("collect", "convert", "inspect", "vllm-doctor"),
    "Grade predictors": ("evaluate", "stability", "calibrate", "compare"),
    "Online estimators": ("replay", "sweep", "drift"),
    "Verification policies": ("simulate", "trimming-check", "audit", "profile", "train-head"),
    "Put together": ("report", "demo"),
}
"""Commands as the help lists them."""


class Commands(TyperGroup):
    """Lists commands by what they are for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of `GROUPS`."""
        return [name for names in GROUPS.values() for name in names if name in self.commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose repeatable options show what they take, not a Python type."""
        command = super().get_command(ctx, cmd_name)
        for param in command.params if command is not None else ():
            if getattr(param, "multiple", False) and param.metavar is None:
                param.metavar = str(param.name).upper()
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's
        """Write each group with its commands."""
        for title, names in GROUPS.items():
            rows = [(n, self.commands[n].get_short_help_str()) for n in names if n in self.commands]
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    name="draftlab",
    cls=Commands,
    help="Offline analysis and feature evaluation for speculative decoding.",
    epilog="Example: draftlab evaluate data/sample. Each command has its own --help.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (logs, grading, online, policies, report, engine):
    app.add_typer(part.app)


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"draftlab: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)
    except OSError as error:  # a disk that is full, a folder that may not be read
        if error.filename is None:
            raise
        print(f"draftlab: {error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)


def _version(show: bool) -> None:
    if show:
        from draftlab import __version__

        typer.echo(f"draftlab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Offline analysis and feature evaluation for speculative decoding."""
