"""Command line: one command, one library call. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftlab.cli import engine, studies
from draftlab.cli.options import BAD_INPUT
from draftlab.errors import InputError

app = typer.Typer(
    name="draftlab",
    help="Offline analysis and feature evaluation for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(engine.app)
app.add_typer(studies.app)


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
