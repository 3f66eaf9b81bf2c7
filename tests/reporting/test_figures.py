"""Figures: they draw the table that they return, and the table is the evaluation's."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import polars as pl
import pytest

from draftlab.reporting import calibration_figures, figures
from draftlab.reporting.style import to_svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.evaluation import Evaluation
    from draftlab.reporting.style import Drawing
    from draftlab.reporting.tables import Cell


DRAWINGS = (*figures.DRAWINGS, *calibration_figures.DRAWINGS, calibration_figures.LENGTHS)
each_drawing = pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)


@pytest.mark.parametrize(
    ("plot", "column"),
    [
        (figures.plot_auc_by_position, "auc"),
        (figures.plot_log_loss_by_position, "log_loss"),
    ],
)
def test_lines_are_the_metrics_by_position(
    plot: Callable[..., Any], column: str, evaluation: Evaluation, cells: dict[str, Cell]
) -> None:
    figure, table = plot(evaluation, cells["plain"])
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.lines}
    assert set(lines) == set(table["name"])
    metrics = evaluation.metrics.filter(run="plain", scope="position")
    for predictor, name in table.select("predictor", "name").unique().iter_rows():
        wanted = metrics.filter(predictor=predictor).sort("position")
        assert list(lines[name].get_ydata()) == wanted[column].to_list()
        assert table.filter(predictor=predictor)["n"].to_list() == wanted["n"].to_list()


def test_reliability_holds_the_bins(evaluation: Evaluation, cells: dict[str, Cell]) -> None:
    figure, table = calibration_figures.plot_reliability(evaluation, cells["head"])
    predictors = ["logit_qmax", "qmax", "confidence"]
    assert table["predictor"].unique(maintain_order=True).to_list() == predictors
    assert len(figure.axes) == 6
    wanted = evaluation.reliability.filter(run="head", predictor="confidence")
    drawn = table.filter(predictor="confidence")
    for column in ("n", "n_accepted", "low", "high"):
        assert drawn[column].to_list() == wanted[column].to_list()


def test_labels_add_up(evaluation: Evaluation, cells: dict[str, Cell]) -> None:
    _, table = calibration_figures.plot_labels(evaluation, cells["plain"])
    overall = evaluation.metrics.filter(run="plain", scope="overall", predictor="logit_qmax")
    assert table["n_accepted"].sum() == overall["n_accepted"][0]
    assert (table["n_accepted"] + table["n_rejected"]).sum() == overall["n"][0]


def test_acceptance_and_workloads(evaluation: Evaluation, cells: dict[str, Cell]) -> None:
    _, table = figures.plot_acceptance(evaluation, cells["plain"])
    rows = evaluation.acceptance.filter(pl.col("dataset").is_null(), run="plain")
    assert table["survival_rate"].to_list() == rows["survival_rate"].to_list()
    _, table = figures.plot_workloads(evaluation, cells["plain"])
    names = table["dataset"].unique(maintain_order=True).to_list()
    assert names[0] == "code"
    assert names[-1] == "chat"
    assert len(table) == 4 * 5


@each_drawing
def test_svg_is_well_formed_named_and_deterministic(
    drawing: Drawing, evaluation: Evaluation, cells: dict[str, Cell]
) -> None:
    texts = []
    for _ in range(2):
        figure, table = drawing.plot(evaluation, cells["plain"])
        texts.append(to_svg(figure, "f", drawing.title, drawing.alt(table)))
    assert texts[0] == texts[1]
    root = ET.fromstring(texts[0].replace("xlink:href", "href"))
    assert [child.tag for child in root][:2] == ["title", "desc"]
    assert root.findtext("title") == drawing.title
    assert all(str(element.get("id", "f-")).startswith("f-") for element in root.iter())
    assert any(element.tag == "text" for element in root.iter())  # text is text, not outlines
    assert "font-family" not in texts[0]
    assert "http" not in texts[0]
    assert "var(--ink, " in texts[0]


@each_drawing
def test_captions_hold_n(drawing: Drawing, evaluation: Evaluation, cells: dict[str, Cell]) -> None:
    _, table = drawing.plot(evaluation, cells["head"])
    assert drawing.caption(table).startswith("n = ")
    assert len(drawing.alt(table)) > 20
    assert drawing.how_to_read.endswith(".")


def test_drawing_leaves_the_style_of_the_process(
    evaluation: Evaluation, cells: dict[str, Cell]
) -> None:
    before = dict(mpl.rcParams)
    figures.plot_auc_by_position(evaluation, cells["plain"])
    assert dict(mpl.rcParams) == before


def test_nothing_here_loads_pyplot() -> None:
    code = (
        "import draftlab.reporting.style as f, sys; f.new_axes(2.0); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
