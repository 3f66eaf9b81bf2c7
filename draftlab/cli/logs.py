"""Commands on logs as files: inspect, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftlab.cli.options import (
    LOSS,
    Json,
    Logs,
    Out,
    Quiet,
    Strict,
    check_folder,
    new_console,
    print_json,
    say,
    working,
)

app = typer.Typer()


@app.command(epilog="Example: draftlab inspect data/sample")
def inspect(
    log: Logs,
    out: Out = None,
    request: Annotated[
        str | None,
        typer.Option(help="Show this request's drafts: its id, or RUN:ID if several runs have it."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Only the request's drafts of this engine step.")
    ] = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Show what is in a log and check it."""
    from draftlab import inspect as run
    from draftlab import open_log

    with working("inspecting", quiet=quiet):
        result = run(open_log(*log, strict=strict), request=request, step=step, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.inspect import print_inspection, print_request

        (print_inspection if request is None else print_request)(result, new_console())
    if not result.passed:
        raise typer.Exit(LOSS)


@app.command(epilog="Example: draftlab convert recordings --out mylog")
def convert(
    source: Annotated[Path, typer.Argument(help="Folder of the foreign files.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Log to add the runs to.", callback=check_folder),
    ],
    source_format: Annotated[str, typer.Option(help="Format of the files.")] = "specspecs",
    drafting: Annotated[
        str, typer.Option(help="How drafts were drawn: greedy or probabilistic.")
    ] = "probabilistic",
    temperature: Annotated[
        float, typer.Option(help="Temperature the requests were sampled with.")
    ] = 1.0,
    quiet: Quiet = False,
) -> None:
    """Turn a foreign recording into a draft log."""
    from draftlab import convert as run

    folders = run(
        source, out, source_format=source_format, drafting=drafting, temperature=temperature
    )
    for folder in folders:
        say(f"wrote {folder}", quiet=quiet)
