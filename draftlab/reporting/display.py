"""Results as a screen of text, as HTML in a notebook, and as figures by name."""

from __future__ import annotations

import io
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from draftlab.errors import InputError
from draftlab.reporting.labels import CellKey, cells, format_number
from draftlab.reporting.tables import describe, headline_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from matplotlib.figure import Figure
    from rich.console import Console

    from draftlab.reporting.figures.style import Drawing
    from draftlab.results import Result
    from draftlab.studies.evaluate import Evaluation

_LINES = 40
"""A screen."""
_WIDTH = 100


def to_text(result: Result) -> str:
    """Return what a screen holds of a result: its headline, its tables by name and size."""
    lines = _headline(result)
    room = _LINES - len(result.tables) - 2
    if len(lines) > room:
        lines = [*lines[: room - 1], f"... {len(lines) - room + 1} more lines"]
    return "\n".join([_title(result), *lines, *_list_tables(result)])


def to_html(result: Result) -> str:
    """Return a result for a notebook: the headline as a table, then the tables by name."""
    meanings = result.meanings()
    entries = "".join(
        f"<li><code>{name}</code> ({len(frame):,} × {frame.width}): {escape(meanings[name])}</li>"
        for name, frame in result.tables.items()
    )
    tables = f"<details><summary>tables</summary><ul>{entries}</ul></details>"
    return f"<b>{escape(_title(result))}</b>{_html_headline(result)}{tables}"


def plot(result: Result, name: str | None = None, *, cell: int = 0, **options: Any) -> Figure:
    """Draw a figure of a result by its name.

    Parameters
    ----------
    result : Result
    name : str
        One of the names that the error lists.
    cell : int
        Which pair, drafting and K of an evaluation, in its order.

    Raises
    ------
    InputError
        No figure of this study has the name.
    """
    known = _drawings(result)
    if name not in known:
        raise InputError(
            f"{result.command} has no figure {name!r}; known: {', '.join(known) or 'none'}"
        )
    figure, _ = known[name].plot(*_arguments(result, cell), **options)
    return figure


def _title(result: Result) -> str:
    rows = [f"{len(result.notes)} notes"] if result.notes else []
    return ", ".join([f"draftlab {result.command}", *rows])


def _list_tables(result: Result) -> list[str]:
    found = [f"  .{name}  {len(frame):,} x {frame.width}" for name, frame in result.tables.items()]
    return ["tables:", *found]


def _headline(result: Result) -> list[str]:
    show = _PRINT.get(result.command)
    if show is None:
        return []
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_WIDTH, force_terminal=False)
    show(result, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def _print_evaluation(evaluation: Evaluation, console: Console) -> None:
    from draftlab.reporting.console.evaluate import rich_headline

    found = cells(evaluation)
    for cell in found[:1]:
        for line in describe(evaluation, cell)[:3]:
            console.print(line, markup=False, highlight=False)
        console.print(rich_headline(headline_table(evaluation, cell)))
    if len(found) > 1:
        console.print(f"... and {len(found) - 1} more cells", markup=False, highlight=False)


def _printer(module: str, name: str) -> Callable[[Any, Console], None]:
    """Return a function of the console that is loaded on use."""

    def show(result: Any, console: Console) -> None:
        getattr(import_module(f"draftlab.reporting.console.{module}"), name)(result, console)

    return show


_PRINT: dict[str, Callable[[Any, Any], None]] = {
    "evaluate": _print_evaluation,
    "inspect": _printer("inspect", "print_inspection"),
    "replay": _printer("replay", "print_replay"),
    "drift": _printer("replay", "print_drift"),
    "simulate": _printer("studies", "print_simulation"),
    "trimming-check": _printer("studies", "print_trimming_check"),
    "audit": _printer("studies", "print_audit"),
}


def _html_headline(result: Any) -> str:
    if result.command == "evaluate":
        return "".join(_html_cell(result, cell) for cell in cells(result))
    lines = _headline(result)[:_LINES]
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def _html_cell(evaluation: Evaluation, cell: CellKey) -> str:
    caption = "<br>".join(escape(line) for line in describe(evaluation, cell)[:3])
    frame = headline_table(evaluation, cell).select(_SHOWN)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in frame.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(format_number(value))}</td>" for value in row) + "</tr>"
        for row in frame.iter_rows()
    )
    return f"<p>{caption}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_SHOWN = ("name", "lossless", "auc", "log_loss", "ece", "mean_prediction")
_FIGURES: dict[str, tuple[str, ...]] = {
    "evaluate": ("predictors.DRAWINGS", "calibration.DRAWINGS", "calibration.SURVIVAL_DRAWINGS"),
    "stability": ("stability.DRAWINGS",),
    "replay": ("replay.REPLAY_DRAWINGS",),
    "drift": ("replay.DRIFT_DRAWINGS",),
    "sweep": ("sweep.DRAWINGS",),
    "simulate": ("simulate.DRAWINGS",),
    "compare": ("compare.DRAWINGS",),
}
"""Where the figures of each study stand, in `draftlab.reporting.figures`."""


def _drawings(result: Result) -> dict[str, Drawing]:
    """Return the figures of a study by name."""
    found = {}
    for path in _FIGURES.get(result.command, ()):
        module, _, name = path.partition(".")
        for drawing in getattr(import_module(f"draftlab.reporting.figures.{module}"), name):
            found[drawing.name.replace("-", "_")] = drawing
    return found


def _arguments(result: Any, cell: int) -> tuple[Any, ...]:
    """Return what the figures of a study take: the result, and the cell where there are several."""
    if result.command == "sweep":
        return (result.combinations,)
    if result.command == "evaluate":
        return (result, cells(result)[cell])
    if result.command == "stability":
        return (result, _key(result.refit_spread, cell))
    if result.command == "simulate":
        return (result, _key(result.frontier, cell), result.frontier["cost"][0])
    return (result,)


def _key(frame: pl.DataFrame, cell: int) -> CellKey:
    keys = frame.select("run", "pair", "drafting").unique(maintain_order=True)
    return CellKey(**keys.row(cell, named=True), num_speculative_tokens=0)
