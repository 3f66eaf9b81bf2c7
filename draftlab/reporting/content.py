"""The content of a report: one strict JSON value of sections, from which every form is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftlab import published
from draftlab.reporting import tables
from draftlab.reporting.labels import cells as cells_of
from draftlab.reporting.labels import of_cell
from draftlab.reporting.sections import appendix, blocks
from draftlab.reporting.sections import evaluate as of_evaluation
from draftlab.reporting.sections import policies as of_policies
from draftlab.reporting.sections import stability as of_stability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import polars as pl

    from draftlab.reporting.labels import CellKey
    from draftlab.reporting.run_studies import Studies
    from draftlab.reporting.sections.blocks import Block
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.inspect import Inspection
    from draftlab.studies.simulate.simulate import Simulation
    from draftlab.studies.stability.stability import Stability

FORMAT_VERSION = 2
"""Of report.json."""


Sections = dict[str, list["Block"]]
"""Of one study, by the id of the cell that they are about; "" for those of the whole log."""


def draw_study(name: str, study: Any, cells: dict[str, CellKey]) -> Sections:
    """Return the sections of a study, its figures drawn; ``name`` is its command."""
    if name in _OF_LOG:
        return {"": [_OF_LOG[name](study)]}
    if name not in _OF_CELL:
        return {}  # it is in the appendix
    return {
        cell_id: [part for part in _OF_CELL[name](study, cell, cell_id) if part is not None]
        for cell_id, cell in cells.items()
    }


def _evaluation_sections(evaluation: Evaluation, cell: CellKey, name: str) -> list[Block | None]:
    return [
        of_evaluation.results(evaluation, cell, f"{name}-results"),
        of_evaluation.orders(evaluation, cell, f"{name}-orders"),
        of_evaluation.against(evaluation, cell, f"{name}-against"),
        of_evaluation.positions(evaluation, cell, f"{name}-positions"),
        of_evaluation.calibration(evaluation, cell, f"{name}-calibration"),
        of_evaluation.acceptance(evaluation, cell, f"{name}-acceptance"),
        of_evaluation.survival(evaluation, cell, f"{name}-survival"),
    ]


def _stability_sections(stability: Stability, cell: CellKey, name: str) -> list[Block | None]:
    if not len(_rows_of(stability.refit_spread, cell)):
        return []
    return [
        of_stability.workloads(stability, cell, f"{name}-workloads"),
        of_stability.stability(stability, cell, f"{name}-stability"),
        of_stability.achievable(stability, cell, f"{name}-achievable"),
    ]


def _simulation_sections(simulation: Simulation, cell: CellKey, name: str) -> list[Block | None]:
    if not len(_rows_of(simulation.frontier, cell)):
        return []
    return [of_policies.budgets(simulation, cell, f"{name}-budgets")]


_OF_CELL: dict[str, Callable[[Any, CellKey, str], list[Block | None]]] = {
    "evaluate": _evaluation_sections,
    "stability": _stability_sections,
    "simulate": _simulation_sections,
}
_OF_LOG: dict[str, Callable[[Any], Block]] = {
    "trimming-check": of_policies.simulated_against_live,
    "replay": of_policies.online,
    "drift": of_policies.abrupt_drift,
    "audit": of_policies.losslessness,
}
"""Both in the report's order."""


def named_cells(evaluation: Evaluation) -> dict[str, CellKey]:
    """Return the cells of an evaluation by their ids."""
    return {f"cell-{i}": cell for i, cell in enumerate(cells_of(evaluation))}


def build_report(
    studies: Studies, drawn: dict[str, Sections] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of report.json (strict JSON), and the figures as SVG by id.

    ``drawn`` are sections by study, from `draw_study`, where they were made already.
    """
    evaluation, inspection = studies.evaluation, studies.inspection
    named = named_cells(evaluation)
    cells = list(named.values())
    drawn = dict(drawn or {})
    for name, result in studies.results.items():
        if name not in drawn:
            drawn[name] = draw_study(name, result, named)
    sections = [
        *(
            blocks.section(name, heading(cell, cells), [], _gather_sections(drawn, _OF_CELL, name))
            for name, cell in named.items()
        ),
        *_gather_sections(drawn, _OF_LOG, ""),
        appendix.notes(studies),
        appendix.meanings(evaluation),
        appendix.runs(inspection),
    ]
    commands = appendix.list_commands(studies)
    origin = appendix.origin(evaluation)
    sections.append(appendix.reproduce(commands, origin))
    svgs = blocks.take_svgs(sections)
    content = {
        "report": FORMAT_VERSION,
        "title": f"Acceptance prediction: {_title(cells)}",
        "lede": "How well the drafter's own distribution tells which of its tokens the target will "
        f"accept, graded on logged drafts ({tables.fit_style(evaluation)}).",
        "facts": facts(inspection, cells) + appendix.where_fact(evaluation),
        "date": date_of(inspection),
        "cells": [{"id": name, **cell._asdict()} for name, cell in named.items()],
        "settings": evaluation.settings,
        "source": published.ARTICLE,
        "commands": commands,
        "provenance": origin,
        "sections": sections,
    }
    return blocks.strict(content), svgs


def facts(inspection: Inspection, cells: list[CellKey]) -> list[list[str]]:
    """Return the facts of the title block as key and value."""
    runs = [run["metadata"] for run in inspection.runs]
    engines = dict.fromkeys(str(run["engine"]) for run in runs)
    proposed = sum(run["rows"]["drafts"] for run in inspection.runs)
    return [
        ["Pair", "; ".join(dict.fromkeys(cell.pair for cell in cells))],
        ["Draft tokens K", _join(cell.num_speculative_tokens for cell in cells)],
        ["Drafting", _join(cell.drafting for cell in cells)],
        ["Sampling", sampling(inspection.sampling)],
        ["Engine", f"{'; '.join(engines)} on {runs[0]['device']}"],
        ["Adaptive verification", _join(run["adaptive_verification"] for run in runs)],
        ["Runs", _join(run["run"] for run in inspection.runs)],
        ["Date of the run", date_of(inspection)],
        ["Proposed drafts", f"{proposed:,}"],
    ]


def sampling(rows: pl.DataFrame) -> str:
    """Return how requests were sampled, in words."""
    kinds = [_sampling(row) for row in rows.head(_SAMPLINGS).iter_rows(named=True)]
    more = f" and {len(rows) - _SAMPLINGS} more" if len(rows) > _SAMPLINGS else ""
    return "; ".join(dict.fromkeys(kinds)) + more


_SAMPLINGS = 3


def _sampling(row: dict[str, Any]) -> str:
    parts = [
        f"{name.replace('_', '-')} {value:g}"
        for name, value in row.items()
        if value is not None and not (name == "top_k" and value <= 0)
    ]
    return ", ".join(parts) or "unknown"


def date_of(inspection: Inspection) -> str:
    """Return the day on which the first run started; empty where it does not say."""
    days = sorted(str(run["metadata"].get("started") or "")[:10] for run in inspection.runs)
    return next((day for day in days if day), "")


def _join(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values))


def _title(cells: list[CellKey]) -> str:
    pairs = list(dict.fromkeys(cell.pair for cell in cells))
    return pairs[0] if len(pairs) == 1 else f"{len(pairs)} pairs"


def heading(cell: CellKey, cells: list[CellKey]) -> str:
    """Return the heading of a cell; it names the pair only where there are several."""
    several = len({other.pair for other in cells}) > 1
    drafting = f"{cell.drafting} drafting, K = {cell.num_speculative_tokens}"
    if several:
        return f"{cell.pair}, {drafting}"
    return drafting[0].upper() + drafting[1:]


def _gather_sections(
    drawn: dict[str, Sections], studies: Iterable[str], cell_id: str
) -> list[Block]:
    return [
        part
        for study in studies
        for part in drawn.get(study, {}).get(cell_id, [])
        if part["blocks"] or part["sections"]
    ]


def _rows_of(frame: pl.DataFrame, cell: CellKey) -> pl.DataFrame:
    return of_cell(frame, cell) if len(frame) else frame
