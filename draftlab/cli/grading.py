"""Commands that grade predictors: evaluate, stability, calibrate, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.cli.options import (
    Bins,
    By,
    Folds,
    InSample,
    Json,
    Logs,
    Out,
    Plugins,
    Pool,
    Predictors,
    Quiet,
    Seed,
    SlopePerPosition,
    Strict,
    Trimmed,
    Where,
    exit_on_loss,
    new_console,
    print_json,
    working,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer()


@app.command(epilog="Example: draftlab evaluate data/sample --predictor logit_qmax -p entropy")
def evaluate(
    log: Logs,
    out: Out = None,
    where: Where = None,
    by: By = None,
    predictor: Predictors = None,
    in_sample: InSample = False,
    folds: Folds = 5,
    n_bins: Bins = 15,
    slope_per_position: SlopePerPosition = False,
    allow_trimmed: Trimmed = False,
    pool: Pool = False,
    compare_all: Annotated[
        bool, typer.Option("--compare-all", help="Compare every two predictors, paired.")
    ] = False,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Refit and grade every predictor."""
    from draftlab import evaluate as run
    from draftlab import open_log

    opened = open_log(*log, strict=strict)
    with working("fitting and grading", quiet=quiet):
        result = run(
            opened,
            predictors=predictor,
            in_sample=in_sample,
            folds=folds,
            n_bins=n_bins,
            slope_per_position=slope_per_position,
            allow_trimmed=allow_trimmed,
            pool=pool,
            plugin=plugin,
            compare="all" if compare_all else "adopted",
            by=by,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.evaluate import print_evaluation

        print_evaluation(result, new_console())
    exit_on_loss(opened)


@app.command(epilog="Example: draftlab stability data/sample --out results")
def stability(
    log: Logs,
    out: Out = None,
    where: Where = None,
    folds: Folds = 5,
    blocks: Annotated[
        int, typer.Option(help="Blocks of steps whose refits show the spread of coefficients.")
    ] = 10,
    seed: Seed = 0,
    allow_trimmed: Trimmed = False,
    pool: Pool = False,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Show whether coefficients hold elsewhere."""
    from draftlab import open_log
    from draftlab import stability as run

    opened = open_log(*log, strict=strict)
    with working("fitting by workload, block and size", quiet=quiet):
        result = run(
            opened,
            folds=folds,
            blocks=blocks,
            seed=seed,
            allow_trimmed=allow_trimmed,
            pool=pool,
            plugin=plugin,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        _print_tables(result, list(result.tables))
    exit_on_loss(opened)


@app.command(epilog="Example: draftlab calibrate data/sample --source qmax")
def calibrate(
    log: Logs,
    out: Out = None,
    where: Where = None,
    by: By = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="What to calibrate: qmax, confidence, or of a plugin. Repeatable. [default: all]"
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Calibrator by name. Repeatable. [default: all]"),
    ] = None,
    n_bins: Bins = 15,
    allow_trimmed: Trimmed = False,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Fit calibrators and grade them held out."""
    from draftlab import calibrate as run
    from draftlab import open_log

    opened = open_log(*log, strict=strict)
    with working("calibrating", quiet=quiet):
        result = run(
            opened,
            sources=source,
            methods=method,
            n_bins=n_bins,
            allow_trimmed=allow_trimmed,
            plugin=plugin,
            by=by,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        import polars as pl

        from draftlab.reporting.console.text import print_table

        pooled = result.metrics.filter(pl.col("position").is_null()).with_columns(
            pl.col("by").fill_null("all")
        )
        columns = ["source", "view", "method", "per_position", "n", "auc", "log_loss", "ece"]
        if by is not None:
            columns.insert(4, "by")
        print_table(pooled.select(columns), new_console())
        _print_tables(result, ("temperatures",))
    exit_on_loss(opened)


@app.command(epilog="Example: draftlab compare data/sample data/sample-skip-3")
def compare(
    a: Annotated[str, typer.Argument(help="First log or run.")],
    b: Annotated[str, typer.Argument(help="Second log or run.")],
    out: Out = None,
    where: Where = None,
    by: By = None,
    allow_trimmed: Annotated[
        bool,
        typer.Option(
            "--allow-trimmed/--refuse-trimmed",
            help="Accept logs collected under adaptive verification, with a warning.",
        ),
    ] = True,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Show how two logs differ, with intervals."""
    from draftlab import compare as run
    from draftlab import open_log

    logs = [open_log(path, strict=strict) for path in (a, b)]
    with working("comparing", quiet=quiet):
        result = run(*logs, allow_trimmed=allow_trimmed, plugin=plugin, by=by, where=where, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        _print_tables(result, list(result.tables))
    exit_on_loss(*logs)


def _print_tables(result: Any, names: Sequence[str]) -> None:
    """Print the tables that hold anything, each under its name, then the notes."""
    from draftlab.reporting.console.studies import print_notes
    from draftlab.reporting.console.studies import say as print_line
    from draftlab.reporting.console.text import print_table

    console = new_console()
    for name in names:
        table = getattr(result, name)
        if len(table):
            print_line(console, f"\n{name.replace('_', ' ')}")
            print_table(table.drop("run", "pair", "drafting", strict=False), console)
    print_notes(result.notes, console)
