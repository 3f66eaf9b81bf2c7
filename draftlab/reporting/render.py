"""Write a report: report.json, and a page and a paper made from nothing else."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.grading.prepare import NUM_FOLDS
from draftlab.log.files import replace_file, write_json, write_text
from draftlab.log.reader import DraftLog, open_any
from draftlab.metrics import NUM_BINS
from draftlab.parallel import run_threads
from draftlab.reporting.content import Sections, build_report, draw_study, named_cells
from draftlab.reporting.page import render_html
from draftlab.reporting.paper import write_pdf
from draftlab.reporting.run_studies import EvaluateOptions, gather
from draftlab.reporting.sections.compare import build_comparison
from draftlab.studies.compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab.plugins import Plugin
    from draftlab.policies.cost import CostTable
    from draftlab.reporting.tables import CellKey
    from draftlab.studies.audit.audit import Audit
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.replay.drift import Drift
    from draftlab.studies.replay.replay import Replay
    from draftlab.studies.simulate.simulate import Simulation
    from draftlab.studies.simulate.trimming_check import LiveCheck
    from draftlab.studies.stability.stability import Stability


def report(
    log: DraftLog | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    evaluation: Evaluation | None = None,
    replay: Replay | None = None,
    stability: Stability | None = None,
    simulation: Simulation | None = None,
    audit: Audit | None = None,
    drift: Drift | None = None,
    live: LiveCheck | None = None,
    cost: CostTable | None = None,
    predictors: Sequence[str] | None = None,
    in_sample: bool = False,
    folds: int = NUM_FOLDS,
    n_bins: int = NUM_BINS,
    slope_per_position: bool = False,
    allow_trimmed: bool = False,
    plugin: Plugin | None = None,
    pdf: bool = True,
) -> Path:
    """Write OUT/report.json, OUT/index.html and OUT/report.pdf; each needs nothing beside it.

    Parameters
    ----------
    log : path, paths or DraftLog
    out : path
        Folder, made if absent.
    evaluation, replay, stability, simulation, audit, drift : optional
        Results of this log; run here when not given. Smooth curves and scores by label need an
        evaluation with ``keep_predictions``. What cannot be run on the log is left out with a
        note, except evaluation and replay.
    live : LiveCheck, optional
        From `check_live`: the simulation against a run that was trimmed.
    cost : CostTable, optional
        What policies are simulated with. Unless told, a cost model, and the log's own steps where
        they show that a draft costs something.
    predictors, in_sample, folds, n_bins, slope_per_position, allow_trimmed, plugin
        As in `evaluate`.
    pdf : bool
        Also write the PDF.

    Returns
    -------
    Path
        index.html.

    Raises
    ------
    InputError
        The log cannot be evaluated.
    """
    content, svgs = make_report(
        open_any(log),
        EvaluateOptions(
            predictors, in_sample, folds, n_bins, slope_per_position, allow_trimmed, plugin
        ),
        cost=cost,
        evaluation=evaluation,
        replay=replay,
        stability=stability,
        simulation=simulation,
        audit=audit,
        drift=drift,
        live=live,
    )
    return write_report(content, svgs, Path(out), pdf=pdf)


def make_report(
    log: DraftLog,
    options: EvaluateOptions | None = None,
    *,
    cost: CostTable | None = None,
    typed: Sequence[str] = (),
    **given: Any,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return content and figures of one log.

    ``options`` are those of `evaluate`, ``typed`` others of the command line, to be repeated in
    the report; ``given`` are results, see `report`.
    """
    drawn: dict[str, Sections] = {}
    cells: dict[str, CellKey] = {}

    def draw(name: str, study: Any) -> None:
        if name == "evaluation":
            cells.update(named_cells(study))
        drawn[name] = draw_study(name, study, cells)

    # what is there is drawn while other studies still run
    studies = gather(log, options or EvaluateOptions(), cost=cost, on_study=draw, **given)
    return build_report(log, studies, drawn, typed)


def make_comparison(a: DraftLog, b: DraftLog) -> tuple[dict[str, Any], dict[str, str]]:
    """Return content and figures of two logs side by side."""
    return build_comparison(a, b, compare(a, b))


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
