"""Options that commands share, and how they print."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from draftlab.log.reader import DraftLog

DONE, LOSS, BAD_INPUT = 0, 1, 2
"""Exit codes: done, finished with loss or a failed check, bad input or usage."""

Logs = Annotated[
    list[str], typer.Argument(metavar="LOG", help="Logs or single runs, local or remote.")
]


def check_folder(out: Path | None) -> Path | None:
    """Refuse a folder that cannot be made, before any work is done for it."""
    _check_place(out)
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; name a folder")
    return out


def check_file(out: Path) -> Path:
    """Refuse a file that cannot be written, before any work is done for it."""
    _check_place(out)
    if out.is_dir():
        raise InputError(f"--out {out}: is a folder; name a file")
    return out


def _check_place(out: Path | None) -> None:
    if out is None:
        return
    nearest = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if nearest != out and not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file; name another place")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"--out {out}: {nearest} may not be written to; name another place")


Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write the result to OUT/COMMAND.", callback=check_folder),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a log with unreadable parts.")]
Where = Annotated[
    str | None,
    typer.Option(
        help="Look at a part of the log: SQL over columns of requests and steps, the step's time "
        "and keys of run.json, as in \"temperature = 0 and time >= '2026-11-29T18'\"."
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        help="Also grade by a column of requests, steps or the run: temperature, time, or "
        "prompt_tokens:100,500 with edges."
    ),
]
Trimmed = Annotated[
    bool,
    typer.Option(
        "--allow-trimmed",
        help="Accept a log collected under adaptive verification (its scores are biased).",
    ),
]
Predictors = Annotated[
    list[str] | None,
    typer.Option("--predictor", "-p", help="Grade only this predictor. Repeatable."),
]
InSample = Annotated[
    bool,
    typer.Option("--in-sample", help="Fit and grade on the same rows, as published tables do."),
]
Folds = Annotated[int, typer.Option(help="Folds by prompt, for cross-fitting.")]
Bins = Annotated[int, typer.Option("--n-bins", help="Equal-width bins of ECE.")]
SlopePerPosition = Annotated[
    bool, typer.Option("--slope-per-position", help="Fit one slope per position (an ablation).")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", help="Python file with your own features. Repeatable."),
]
Pool = Annotated[
    bool,
    typer.Option(
        "--pool", help="Pool all runs into one table, even if pair, K or drafting differ."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn at random.")]


def exit_on_loss(*logs: DraftLog) -> None:
    """Name unreadable parts and runs cut short on standard error; exit with the code for loss."""
    lost = [f"{problem.path}: {problem.message}" for log in logs for problem in log.problems]
    lost += [
        f"{run.path}: the run was not closed, so what came last is missing (draftlab inspect)"
        for log in logs
        for run in log.runs
        if not run.metadata["closed"]
    ]
    for sentence in lost:
        typer.echo(f"draftlab: {sentence}", err=True)
    if lost:
        raise typer.Exit(LOSS)


def typed_options(ctx: typer.Context, *but: str) -> dict[str, Any]:
    """Return the options that were typed, not those left at their default."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params if name not in but}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: ctx.params[name] for name in typed}


@contextlib.contextmanager
def show_progress(title: str, total: int | None, *, quiet: bool) -> Iterator[Any]:
    """Show a progress bar on a terminal, nothing off one; yields what advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(completed: int, description: str) -> None:
            bar.update(task, completed=completed, description=f"{title}: {description}")

        yield advance


def working(title: str, *, quiet: bool) -> contextlib.AbstractContextManager[Any]:
    """Say on a terminal what is being done and for how long; nothing remains of it."""
    return show_progress(title, None, quiet=quiet)


def new_console() -> Console:
    """Return a console that is wide enough for our tables where there is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 160))


def say(text: str, *, quiet: bool) -> None:
    """Print a line for a person."""
    if not quiet:
        typer.echo(text)


def print_json(content: Any) -> None:
    """Print strict JSON."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))
