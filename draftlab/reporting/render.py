"""The report: one dict of tables (report.json), and one self-contained page made from it."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from draftlab import published
from draftlab.evaluation import NUM_FOLDS, evaluate
from draftlab.log.checks import CHECKS, run_checks
from draftlab.log.files import replace_file, to_records, write_json
from draftlab.log.reader import DraftLog, open_any
from draftlab.log.summary import workloads
from draftlab.metrics import NUM_BINS
from draftlab.predictors.baselines import PREDICTORS
from draftlab.replaying import replay as run_replay
from draftlab.reporting import tables
from draftlab.reporting.figures import DRAWINGS
from draftlab.reporting.findings import findings
from draftlab.reporting.replays import (
    REPLAY_DRAWINGS,
    SUMMARY,
    describe_replay,
)
from draftlab.reporting.style import Drawing, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.evaluation import Evaluation
    from draftlab.log.reader import Problem, Run
    from draftlab.replaying import Replay
    from draftlab.reporting.tables import Cell

FORMAT_VERSION = 1
"""Of report.json."""

_RUN_FACTS = (
    "run", "target", "drafter", "method", "drafting", "num_speculative_tokens", "verification",
    "adaptive_verification", "feature_source", "engine", "draftlab", "device", "vocab_size",
    "started", "finished", "closed", "dropped_proposals",
)  # fmt: skip


_TITLES = {
    "name": "predictor",
    "dataset": "workload",
    "n_groups": "prompts",
    "n_admitted": "admitted",
    "n_observed": "observed",
    "n_accepted": "accepted",
    "n_rejected": "rejected",
    "rate": "acceptance",
    "conditional_rate": "conditional",
    "survival_rate": "survival",
    "mean_prediction": "mean prediction",
    "mean_entropy": "H(q), nats",
    "intercept_0": "own b0",
    "slope_low": "least",
    "slope_high": "largest",
    "acceptance_length": "acceptance length",
    "acceptance_length_by_request": "by request",
    "auc": "AUC",
    "log_loss": "log-loss",
    "ece": "ECE",
    "cold_start_labels": "cold start",
}
"""Column titles; others are the column's name."""


class _Drawn(NamedTuple):
    """A figure as it stands in the page."""

    drawing: Drawing
    id: str
    svg: str
    table: pl.DataFrame

    @property
    def content(self) -> dict[str, Any]:
        """What report.json holds of it."""
        return {
            "name": self.drawing.name,
            "id": self.id,
            "title": self.drawing.title,
            "caption": self.drawing.caption(self.table),
            "alt": self.drawing.alt(self.table),
            "how_to_read": self.drawing.how_to_read,
            "table": to_records(self.table),
        }


def report(
    log: DraftLog | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    evaluation: Evaluation | None = None,
    replay: Replay | None = None,
    in_sample: bool = False,
    folds: int = NUM_FOLDS,
    n_bins: int = NUM_BINS,
    allow_selected: bool = False,
) -> Path:
    """Write OUT/report.json and OUT/index.html, a page that needs nothing beside it.

    Parameters
    ----------
    log : path, paths or DraftLog
    out : path
        Folder, made if absent.
    evaluation : Evaluation, optional
        Of this log; computed when not given, with the options below.
    replay : Replay, optional
        Of this log; computed with vLLM's constants when not given.
    in_sample, folds, n_bins, allow_selected
        As in `evaluate`.

    Returns
    -------
    Path
        index.html.

    Raises
    ------
    InputError
        The log cannot be evaluated.
    """
    opened = open_any(log)
    if evaluation is None:
        evaluation = evaluate(
            opened, in_sample=in_sample, folds=folds, n_bins=n_bins, allow_selected=allow_selected
        )
    if replay is None:
        replay = run_replay(opened)
    content, svgs = build_report(opened, evaluation, replay)
    page = render_html(content, svgs)
    folder = Path(out)
    write_json(folder / "report.json", content)
    replace_file(folder / "index.html", lambda path: _write_text(path, page))
    return folder / "index.html"


def build_report(
    log: DraftLog, evaluation: Evaluation, replay: Replay
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of report.json (strict JSON), and the figures as SVG by id."""
    cells = tables.cells(evaluation)
    drawn = [draw(evaluation, cell, f"cell-{i}") for i, cell in enumerate(cells)]
    replayed = draw_replay(replay)
    content = {
        "report": FORMAT_VERSION,
        "title": _title(cells),
        "pairs": len({cell.pair for cell in cells}),
        "settings": evaluation.settings,
        "fit_style": tables.fit_style(evaluation),
        "source": published.ARTICLE,
        "cells": [
            _cell_content(evaluation, cell, f"cell-{i}", figures)
            for i, (cell, figures) in enumerate(zip(cells, drawn, strict=True))
        ],
        "replay": {
            "description": describe_replay(replay),
            "summary": to_records(_replay_summary(replay)),
            "notes": replay.notes,
            "settings": replay.settings,
            "figures": [figure.content for figure in replayed],
        },
        "notes": [_shorten_paths(note, log) for note in evaluation.notes],
        "runs": [_run_content(run) for run in log.runs],
        # polars adds up in no fixed order, and the same log must give the same page
        "workloads": to_records(workloads(log).with_columns(pl.selectors.float().round(6))),
        "num_checks": len(CHECKS),
        "checks": [asdict(finding) for finding in run_checks(log)],
        "problems": [_problem_content(problem) for problem in log.problems],
        "commands": _commands(log, evaluation),
        "provenance": evaluation.provenance,
    }
    svgs = {figure.id: figure.svg for figures in (*drawn, replayed) for figure in figures}
    return _strict(content), svgs


def draw(evaluation: Evaluation, cell: Cell, prefix: str) -> list[_Drawn]:
    """Draw the figures of a cell; one without rows is left out. Ids begin with ``prefix``."""
    out = []
    for drawing in DRAWINGS:
        figure, table = drawing.plot(evaluation, cell)
        if len(table):
            name = f"{prefix}-{drawing.name}"
            svg = to_svg(figure, name, drawing.title, drawing.alt(table))
            out.append(_Drawn(drawing, name, svg, table))
    return out


def draw_replay(replay: Replay) -> list[_Drawn]:
    """Draw the figures of a replay; of several runs the first."""
    out = []
    for drawing in REPLAY_DRAWINGS:
        figure, table = drawing.plot(replay)
        if len(table):
            name = f"replay-{drawing.name}"
            svg = to_svg(figure, name, drawing.title, drawing.alt(table))
            out.append(_Drawn(drawing, name, svg, table))
    return out


def _replay_summary(replay: Replay) -> pl.DataFrame:
    columns = SUMMARY if replay.summary["run"].n_unique() == 1 else ("run", *SUMMARY)
    return replay.summary.select(columns)


def render_html(content: dict[str, Any], svgs: dict[str, str]) -> str:
    """Return the page for the content of report.json and its figures."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("draftlab", "reporting/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = tables.format_number
    environment.globals["titles"] = _titles
    environment.tests["right"] = lambda value: isinstance(value, int | float) or value is None
    trusted = {name: Markup(svg) for name, svg in svgs.items()}  # noqa: S704 - escaped by to_svg
    page = environment.get_template("index.html.j2")
    return page.render(report=content, svgs=trusted, adopted=tables.ADOPTED)


def _titles(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the columns to print and their titles; a printed name stands for the key."""
    hidden = {"predictor"} if rows and "name" in rows[0] else set()
    columns = rows[0] if rows else {}
    return {
        name: _TITLES.get(name, name.replace("b_", "b")) for name in columns if name not in hidden
    }


def _cell_content(
    evaluation: Evaluation, cell: Cell, name: str, figures: list[_Drawn]
) -> dict[str, Any]:
    headline = tables.headline_table(evaluation, cell)
    found = {
        "headline": headline,
        "findings": findings(evaluation, cell),
        "by_position": tables.by_position(evaluation, cell, headline["predictor"]),
        "workloads": tables.workload_table(evaluation, cell),
        "coefficients": tables.coefficient_table(evaluation, cell),
        "exclusions": tables.of_cell(evaluation.exclusions, cell),
    }
    adopted = headline.filter(predictor=tables.ADOPTED)
    return {
        "id": name,
        "cell": cell._asdict(),
        "description": tables.describe(evaluation, cell),
        "excluded": tables.excluded_text(evaluation, cell),
        "selected": bool(headline["selected"].any()),
        "adopted": to_records(adopted)[0] if len(adopted) else None,
        "tables": {key: to_records(table) for key, table in found.items()},
        "figures": [figure.content for figure in figures],
    }


def _run_content(run: Run) -> dict[str, Any]:
    facts = {name: run.metadata.get(name) for name in _RUN_FACTS}
    started_by = run.metadata.get("provenance") or {}
    return {
        "facts": facts | {"rows": run.rows, "unfinished_files": len(run.unfinished)},
        "provenance": started_by,
    }


def _problem_content(problem: Problem) -> dict[str, str]:
    return {"path": _tail(problem.path), "message": problem.message}


def _tail(path: str) -> str:
    """Return run, table and part of a file: where the log lay is nobody's business."""
    return "/".join(path.split("/")[-3:])


def _shorten_paths(note: str, log: DraftLog) -> str:
    for problem in log.problems:
        note = note.replace(problem.path, _tail(problem.path))
    return note


def _title(cells: list[Cell]) -> str:
    pairs = list(dict.fromkeys(cell.pair for cell in cells))
    return pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs"


def _commands(log: DraftLog, evaluation: Evaluation) -> list[str]:
    """Return what to type for this report: the collection of each run, then the report."""
    collected = [(run.metadata.get("provenance") or {}).get("command") for run in log.runs]
    logs = list(dict.fromkeys(_printed_path(run.path) for run in log.runs))
    return [
        *dict.fromkeys(command for command in collected if command),
        _report_command(logs, _changed(evaluation)),
    ]


def _report_command(logs: list[str], changed: dict[str, Any]) -> str:
    """Return the command line, or a line of Python where it has no option for a setting."""
    if set(changed) <= {"in_sample"}:
        option = "--in-sample " if changed else ""
        return f"draftlab report {shlex.join(logs)} {option}--out report"
    options = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    evaluated = f"evaluation=draftlab.evaluate({logs}, {options})"
    call = f"import draftlab; draftlab.report({logs}, 'report', {evaluated})"
    return shlex.join(["python", "-c", call])


def _changed(evaluation: Evaluation) -> dict[str, Any]:
    """Return the options of `evaluate` that were not left as they are."""
    settings = evaluation.settings
    changed: dict[str, Any] = {}
    if settings["in_sample"]:
        changed["in_sample"] = True
    elif settings["folds"] != NUM_FOLDS:
        changed["folds"] = settings["folds"]
    if settings["n_bins"] != NUM_BINS:
        changed["n_bins"] = settings["n_bins"]
    if settings["own_slopes"]:
        changed["own_slopes"] = True
    if list(settings["predictors"]) != list(PREDICTORS):
        changed["predictors"] = list(settings["predictors"])
    if evaluation.metrics["selected"].any():
        changed["allow_selected"] = True
    return changed


def _printed_path(path: str) -> str:
    """Return a path as typed from the working folder; elsewhere it reads LOG/RUN."""
    if "://" in path:
        return path
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return f"LOG/{Path(path).name}"


def _strict(value: Any) -> Any:
    """Return the value with every float that JSON lacks as None."""
    if isinstance(value, dict):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
