"""The command that writes pages: report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.cli.options import (
    Bins,
    By,
    Folds,
    InSample,
    Plugins,
    Predictors,
    Quiet,
    SlopePerPosition,
    Strict,
    Trimmed,
    Where,
    check_folder,
    exit_on_loss,
    say,
    working,
)
from draftlab.errors import InputError

if TYPE_CHECKING:
    from draftlab.log.reader import DraftLog

app = typer.Typer()


@app.command(epilog="Example: draftlab report data/sample --out report")
def report(
    log: Annotated[
        list[str],
        typer.Argument(metavar="LOG", help="Logs or single runs, or a folder of results."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the report; results below it are reused. [default: report]",
            callback=check_folder,
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="Second log to compare with (several times, once per run). Shows differences "
            "instead of scores."
        ),
    ] = None,
    trimmed: Annotated[
        str | None,
        typer.Option(
            help="Log of the same prompts collected with adaptive verification on; checks the "
            "simulation against it."
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            "--cost", "-c", help="Cost table: 'log', HARDWARE/MODEL, or a file of `profile`."
        ),
    ] = None,
    where: Where = None,
    by: By = None,
    predictor: Predictors = None,
    in_sample: InSample = False,
    folds: Folds = 5,
    n_bins: Bins = 15,
    slope_per_position: SlopePerPosition = False,
    allow_trimmed: Trimmed = False,
    plugin: Plugins = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make every result again instead of reusing it.")
    ] = False,
    pdf: Annotated[bool, typer.Option("--pdf/--no-pdf", help="Also write report.pdf.")] = True,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print a summary for a pull request; write files only with --out."
        ),
    ] = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Write a report: HTML, PDF and JSON."""
    import tempfile

    from draftlab import open_log
    from draftlab import report as run
    from draftlab.reporting.run_studies import holds_results

    logs: list[DraftLog] = []

    def opened(paths: list[str]) -> Any:
        logs.append(open_log(*paths, strict=strict))
        return logs[-1]

    of_results = len(log) == 1 and holds_results(log[0])
    if of_results and strict:
        raise InputError("--strict refuses a damaged log, and a folder of results is none")
    with tempfile.TemporaryDirectory() as elsewhere, working("studying the log", quiet=quiet):
        folder = out or (Path(elsewhere) if markdown else Path("report"))
        index = run(
            log[0] if of_results else opened(log),
            folder,
            compare=opened(compare) if compare else None,
            trimmed=trimmed,
            cost=cost,
            where=where,
            by=by,
            predictors=predictor,
            in_sample=in_sample,
            folds=folds,
            n_bins=n_bins,
            slope_per_position=slope_per_position,
            allow_trimmed=allow_trimmed,
            plugin=plugin,
            fresh=fresh,
            pdf=pdf and not (markdown and out is None),
            on_line=lambda line: say(line, quiet=quiet or markdown),
        )
        if markdown:
            _print_markdown(folder)
    say(f"wrote {index}", quiet=quiet or markdown)
    exit_on_loss(*logs)


def _print_markdown(folder: Path) -> None:
    import json

    from draftlab.reporting.markdown import render_markdown

    typer.echo(render_markdown(json.loads((folder / "report.json").read_text(encoding="utf-8"))))
