"""Write a report: report.json, and a page and a paper made from nothing else."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import InputError
from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.files import replace_file, write_json, write_text
from draftlab.log.reader import DraftLog, open_any
from draftlab.metrics import NUM_BINS
from draftlab.parallel import run_threads
from draftlab.plugins import as_plugin
from draftlab.reporting.content import Sections, build_report, draw_study, named_cells
from draftlab.reporting.page import render_html
from draftlab.reporting.paper import write_pdf
from draftlab.reporting.run_studies import (
    Call,
    EvaluateOptions,
    holds_results,
    plan,
    read_studies,
    run_missing_studies,
)
from draftlab.reporting.sections.compare import build_comparison
from draftlab.studies.compare import compare as compare_logs
from draftlab.studies.evaluate import Evaluation
from draftlab.studies.inspect import inspect
from draftlab.studies.simulate.costs import as_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab.plugins import Plugin
    from draftlab.reporting.labels import CellKey
    from draftlab.results import Result
    from draftlab.studies.simulate.costs import Cost


def report(
    log: DraftLog | str | Path | Sequence[str | Path],
    out: str | Path = "report",
    *,
    compare: DraftLog | str | Path | Sequence[str | Path] | None = None,
    trimmed: str | Path | None = None,
    cost: Cost | None = None,
    where: str | None = None,
    by: str | None = None,
    predictors: str | Sequence[str] | None = None,
    in_sample: bool = False,
    folds: int = NUM_FOLDS,
    n_bins: int = NUM_BINS,
    slope_per_position: bool = False,
    allow_trimmed: bool = False,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    results: Sequence[Result] = (),
    fresh: bool = False,
    pdf: bool = True,
    on_line: Callable[[str], None] | None = None,
) -> Path:
    """Write OUT/report.json, OUT/index.html and OUT/report.pdf; each needs no other file.

    Parameters
    ----------
    log : path, paths, DraftLog, or a folder of results
        A log is studied, and the results are written below ``out``. Of a folder that studies were
        written to (``--out``) the page is made without the log.
    out : path
        Folder, made if absent. Results that lie below it are read instead of made again if they
        are of the same log, options, plugin files and version of the code.
    compare : path, paths or DraftLog, optional
        A second log: differences instead of grades.
    trimmed : path, optional
        Log of the same prompts collected with adaptive verification on: the simulation is checked
        against it.
    cost : CostTable, str or path, optional
        As in `simulate`.
    where : str, optional
        Part of the log, and of the second one, as in `DraftLog.narrow`. What describes the log
        itself, its runs and checks, stays that of the whole.
    by, predictors, in_sample, folds, n_bins, slope_per_position, allow_trimmed, plugin
        As in `evaluate`.
    results : sequence of Result, optional
        Results of this log to show instead of those that would be made.
    fresh : bool
        Make every result again.
    pdf : bool
        Also write the PDF.
    on_line : callable, optional
        Called with a line on what was reused.

    Returns
    -------
    Path
        index.html.

    Raises
    ------
    InputError
        The log cannot be evaluated or replayed, options do not go together, or a folder of
        results lacks what a report needs.
    """
    folder = Path(out)
    options = EvaluateOptions(
        predictors,
        in_sample,
        folds,
        n_bins,
        slope_per_position,
        allow_trimmed,
        None if plugin is None else as_plugin(plugin),
        by,
    )
    if compare is not None:
        _refuse_beside_compare(
            options, trimmed=trimmed, cost=cost, results=results or None, fresh=fresh or None
        )
        made = make_comparison(open_any(log, where), open_any(compare, where), out=folder)
    elif isinstance(log, str | Path) and holds_results(log):
        _refuse_beside_results(
            options,
            trimmed=trimmed,
            cost=cost,
            where=where,
            results=results or None,
            fresh=fresh or None,
        )
        made = build_report(read_studies(Path(log)))
    else:
        opened = open_any(log, where)
        if opened.where is not None and trimmed is not None:
            raise InputError(
                "--trimmed rehearses whole batches, and --where leaves a part of them: leave out "
                "one of the two"
            )
        if cost is not None:
            as_cost(cost, opened)  # a name that is none ends here, not as a study left out
        made = make_report(
            opened,
            plan(options, cost, trimmed),
            given=results,
            out=folder,
            fresh=fresh,
            on_line=on_line,
        )
    return write_report(*made, folder, pdf=pdf)


Page = tuple[dict[str, Any], dict[str, str]]
"""Content of report.json, and figures as SVG by id."""


def make_report(
    log: DraftLog,
    calls: dict[str, Call] | None = None,
    *,
    given: Sequence[Result] = (),
    out: Path | None = None,
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Page:
    """Return content and figures of one log; see `run_missing_studies` for the parameters."""
    drawn: dict[str, Sections] = {}
    cells: dict[str, CellKey] = {}

    def draw(name: str, result: Result) -> None:
        if isinstance(result, Evaluation):
            cells.update(named_cells(result))
        drawn[name] = draw_study(name, result, cells)

    # what is there is drawn while other studies still run
    studies = run_missing_studies(
        log,
        plan(EvaluateOptions()) if calls is None else calls,
        given=given,
        out=out,
        fresh=fresh,
        on_study=draw,
    )
    if studies.reused and on_line is not None:
        on_line(
            f"reused {', '.join(studies.reused)} from {out}: same log, options and code "
            "(--fresh makes them again)"
        )
    return build_report(studies, drawn)


def make_comparison(a: DraftLog, b: DraftLog, *, out: Path | None = None) -> Page:
    """Return content and figures of two logs side by side."""
    return build_comparison(inspect(a), inspect(b), compare_logs(a, b, out=out))


def _refuse_beside_compare(options: EvaluateOptions, **others: Any) -> None:
    if given := _given(options, others):
        raise InputError(
            "--compare shows differences of two logs, on held-out rows and without simulation: "
            f"leave out {', '.join(given)}"
        )


def _refuse_beside_results(options: EvaluateOptions, **others: Any) -> None:
    if given := _given(options, others):
        raise InputError(
            f"a folder of results is shown as it is: leave out {', '.join(given)}, or name the log"
        )


def _given(options: EvaluateOptions, others: dict[str, Any]) -> list[str]:
    """Return the options that were not left as they are, as they are typed."""
    defaults = EvaluateOptions()._asdict()
    names = [name for name, value in others.items() if value is not None]
    names += [name for name, value in options._asdict().items() if value != defaults[name]]
    return [f"--{'predictor' if n == 'predictors' else n.replace('_', '-')}" for n in names]


def write_report(content: dict[str, Any], svgs: dict[str, str], folder: Path, *, pdf: bool) -> Path:
    """Write content in all its forms, each file atomically; return index.html."""
    forms: list[Callable[[], Any]] = [
        lambda: write_text(folder / "index.html", render_html(content, svgs)),
        lambda: write_json(folder / "report.json", content),
    ]
    if pdf:
        make_pdf = functools.partial(write_pdf, content, svgs)
        forms.insert(0, lambda: replace_file(folder / "report.pdf", make_pdf))
    else:
        (folder / "report.pdf").unlink(missing_ok=True)  # it would be that of another report
    # side by side: Typst works without Python's lock
    run_threads(lambda write: write(), forms)
    return folder / "index.html"
