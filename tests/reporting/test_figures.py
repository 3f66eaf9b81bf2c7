"""Figures: they draw the table that they return, and the table is the evaluation's."""

from __future__ import annotations

import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from draftlab.log.reader import open_log
from draftlab.reporting.figures import calibration as calibration_figures
from draftlab.reporting.figures import predictors as figures
from draftlab.reporting.figures import stability as stability_figures
from draftlab.reporting.figures.heat_maps import Form, Shading, Tile, fill_heat_map
from draftlab.reporting.figures.shorten import shorten_all
from draftlab.reporting.figures.style import STYLE, new_axes, to_svg
from draftlab.reporting.labels import cells as cells_of
from draftlab.studies.evaluate import evaluate
from draftlab.studies.stability.stability import stability
from draftlab.synth import synth_log
from tests.logs import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.reporting.figures.style import Drawing
    from draftlab.reporting.labels import CellKey
    from draftlab.studies.evaluate import Evaluation
    from draftlab.studies.stability.stability import Stability

Study = TypeVar("Study", "Evaluation", "Stability")

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
    plot: Callable[..., Any], column: str, evaluation: Evaluation, cells: dict[str, CellKey]
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


def test_reliability_holds_the_bins(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
    figure, table = calibration_figures.plot_reliability(evaluation, cells["head"])
    predictors = ["logit_qmax", "qmax", "confidence"]
    assert table["predictor"].unique(maintain_order=True).to_list() == predictors
    assert len(figure.axes) == 6
    wanted = evaluation.reliability.filter(run="head", predictor="confidence")
    drawn = table.filter(predictor="confidence")
    for column in ("n", "n_accepted", "low", "high"):
        assert drawn[column].to_list() == wanted[column].to_list()


def test_labels_add_up(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
    _, table = calibration_figures.plot_labels(evaluation, cells["plain"])
    overall = evaluation.metrics.filter(run="plain", scope="overall", predictor="logit_qmax")
    assert table["n_accepted"].sum() == overall["n_accepted"][0]
    assert (table["n_accepted"] + table["n_rejected"]).sum() == overall["n"][0]


def test_acceptance_and_workloads(evaluation: Evaluation, cells: dict[str, CellKey]) -> None:
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
    drawing: Drawing, evaluation: Evaluation, cells: dict[str, CellKey]
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
def test_captions_hold_n(
    drawing: Drawing, evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    _, table = drawing.plot(evaluation, cells["head"])
    assert drawing.caption(table).startswith("n = ")
    assert len(drawing.alt(table)) > 20
    assert drawing.how_to_read.endswith(".")


def test_drawing_leaves_the_style_of_the_process(
    evaluation: Evaluation, cells: dict[str, CellKey]
) -> None:
    before = dict(mpl.rcParams)
    figures.plot_auc_by_position(evaluation, cells["plain"])
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_nothing_here_loads_pyplot() -> None:
    code = (
        "import draftlab.reporting.figures.style as f, sys; f.new_axes(2.0); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


ORDINARY = (
    "gsm8k", "humaneval", "livecodebench", "longbench-v2", "swe-bench", "sharegpt", "mt-bench",
    "speed-bench-2k-low-entropy",
)  # fmt: skip
NAMES: dict[str, Callable[[int], str]] = {
    "short": lambda i: f"w{i}",
    "ordinary": lambda i: ORDINARY[i % 8] + ("" if i < 8 else f"-{i // 8}"),
    "long": lambda i: f"workload-with-a-very-long-name-{i:02d}",
    "long tail": lambda i: f"workload-with-{ORDINARY[i % 8]}{i // 8}-and-a-tail-of-2k",
    "hostile": lambda i: f"{HOSTILE} {i}",
}


@pytest.fixture(scope="module", params=[2, 5, 8, 14, 25])
def workloads(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Evaluation, Stability]:
    """Evaluate a log of so many workloads; they are named w0, w1 and so on."""
    shifts = np.random.default_rng(request.param).normal(0, 0.6, request.param)
    folder = tmp_path_factory.mktemp("workloads")
    synth_log(
        folder, num_requests=max(40, 4 * request.param), steps_per_request=12,
        datasets={f"w{i}": float(shift) for i, shift in enumerate(shifts)},
    )  # fmt: skip
    log = open_log(folder)
    return evaluate(log, predictors=["logit_qmax"]), stability(log, ceiling_share=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("plot", ["workloads", "transfer", "correlation"])
def test_texts_of_many_workloads_are_apart(
    plot: str, kind: str, workloads: tuple[Evaluation, Stability]
) -> None:
    evaluation, found = rename(workloads[0], NAMES[kind]), rename(workloads[1], NAMES[kind])
    cell = cells_of(evaluation)[0]
    draw: dict[str, Callable[[], tuple[Figure, pl.DataFrame]]] = {
        "workloads": lambda: figures.plot_workloads(evaluation, cell),
        "transfer": lambda: stability_figures.plot_transfer(found, cell),
        "correlation": lambda: stability_figures.plot_correlation(found, cell),
    }
    figure, table = draw[plot]()
    check_texts(figure)
    if plot == "correlation":
        for axes in figure.axes:
            check_labels(axes, len(table))
    else:
        axes = figure.axes[0]
        rows = [tick.get_text() for tick in axes.get_yticklabels()]
        assert len(set(rows)) == len(rows) == table[table.columns[0]].n_unique()


@pytest.mark.slow
@pytest.mark.parametrize("num_positions", [1, 8, 16, 24])
@pytest.mark.parametrize("count", [1, 3, 60])
def test_texts_of_many_positions_are_apart(num_positions: int, count: int) -> None:
    rates = np.linspace(1, 0, count * num_positions).reshape(count, num_positions)
    tiles = [Tile(k, row, float(rates[row, k])) for row, k in np.ndindex(rates.shape)]
    names = [f"workload-{i}" for i in range(count)]
    check_texts(draw_map(tiles, names, [str(k) for k in range(num_positions)]))


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 70])
def test_map_of_ever_so_many_workloads_stays_on_a_page(count: int) -> None:
    tiles = [Tile(x, y, abs(x - y) / count) for x, y in np.ndindex(count, count)]
    names = [f"workload-{i}" for i in range(count)]
    figure = draw_map(tiles, names, names)
    check_texts(figure)
    assert figure.get_figheight() < 8


def test_numbers_are_left_out_where_a_scale_stands() -> None:
    for count, written in ((5, True), (25, False)):
        tiles = [Tile(x, y, -1.5) for x, y in np.ndindex(count, count)]
        names = [f"w{i}" for i in range(count)]
        figure = draw_map(tiles, names, names)
        assert bool(figure.axes[0].texts) == written
        assert bool(figure.legends) != written


@pytest.mark.slow
def test_points_at_one_place_are_numbered(workloads: tuple[Evaluation, Stability]) -> None:
    found = workloads[1]
    cell = cells_of(workloads[0])[0]
    columns = ("mean_entropy", "slope", "intercept_0")
    rows = found.workloads.with_columns(pl.lit(1.0).alias(name) for name in columns)
    figure, _ = stability_figures.plot_correlation(replace(found, workloads=rows), cell)
    check_texts(figure)


@pytest.mark.slow
def test_too_many_points_have_no_labels(workloads: tuple[Evaluation, Stability]) -> None:
    found = workloads[1]
    rows = pl.concat([found.workloads] * 25)
    figure, table = stability_figures.plot_correlation(
        replace(found, workloads=rows), cells_of(workloads[0])[0]
    )
    assert len(table) >= 50
    assert not any(axes.texts for axes in figure.axes)
    check_texts(figure)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("limit", [12, 24])
def test_short_names_stay_distinct(kind: str, limit: int) -> None:
    names = [NAMES[kind](i) for i in range(25)]
    short = shorten_all(names, limit)
    assert len(set(short)) == 25
    assert max(map(len, short)) <= limit
    assert all(new == old for new, old in zip(short, names, strict=True) if len(old) <= limit)


def test_names_that_nothing_short_tells_apart_are_numbered() -> None:
    names = [f"{'a' * i}{'b' * 40}{'a' * (30 - i)}" for i in range(10, 20)]
    assert len(set(shorten_all(names, 12))) == 10


def rename(study: Study, name: Callable[[int], str]) -> Study:
    """Return a study with other names of workloads."""
    names = {f"w{i}": name(i) for i in range(25)}
    columns = ("dataset", "trained_on", "graded_on")
    found: dict[str, Any] = {
        key: table.with_columns(pl.col(c).replace(names) for c in columns if c in table.columns)
        for key, table in vars(study).items()
        if isinstance(table, pl.DataFrame)
    }
    return replace(study, **found)


def draw_map(tiles: list[Tile], rows: list[str], columns: list[str]) -> Figure:
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = new_axes(4.0)
        forms = [Form(9, 3), Form(8, 0, 100, ", tiles in %")]
        shading = Shading("sky", 1.0, "share")
        fill_heat_map(figure, axes, tiles, rows, columns, shading, forms)
    return figure


def check_texts(figure: Figure) -> None:
    """Check that texts can be read: none covers another, leaves the figure or is too small."""
    figure.set_dpi(72)  # as in SVG
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.draw_without_rendering()
        boxes = [(text.get_text(), extent(text)) for text in printed_texts(figure)]
    assert all(float(text.get_fontsize()) >= 8 for text in printed_texts(figure))
    width, height = figure.bbox.size
    for text, box in boxes:
        assert box.x0 > -0.5, text
        assert box.y0 > -0.5, text
        assert box.x1 < width + 0.5, text
        assert box.y1 < height + 0.5, text
    covered = overlaps([box for _, box in boxes])
    assert not covered, [(boxes[i][0], boxes[j][0]) for i, j in covered]


def check_labels(axes: Axes, count: int) -> None:
    """Check that every point has a label, inside the panel, off points and the fitted line."""
    if not axes.lines:
        return
    assert len(axes.texts) == count
    line, points = (axes.transData.transform(drawn.get_xydata()) for drawn in axes.lines)
    for text in axes.texts:
        box = extent(text)
        assert axes.bbox.fully_containsx(box.x0), text
        assert axes.bbox.fully_containsx(box.x1), text
        assert axes.bbox.fully_containsy(box.y0), text
        assert axes.bbox.fully_containsy(box.y1), text
        assert not any(box.contains(x, y) for x, y in (*line, *points)), text


def printed_texts(figure: Figure) -> list[Text]:
    """Return the texts of a figure; labels of ticks out of view are not printed."""
    hidden: set[Any] = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                hidden |= {tick.label1, tick.label2}
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [t for t in texts if t not in hidden and t.get_visible() and t.get_text().strip()]


def extent(text: Text) -> Bbox:
    return Text.get_window_extent(text)  # of an annotation without its line


def overlaps(boxes: list[Bbox]) -> list[tuple[int, int]]:
    """Return the pairs of boxes that cover one another by more than half a pixel each way."""
    ends = np.array([box.extents for box in boxes]).reshape(-1, 4)
    low, high = ends[:, :2], ends[:, 2:]
    shared = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    pairs = np.argwhere(np.triu((shared > 0.5).all(axis=-1), 1))
    return [(int(i), int(j)) for i, j in pairs]


def test_boxes_that_cover_one_another_are_seen() -> None:
    boxes = [Bbox([[0, 0], [10, 10]]), Bbox([[9, 9], [20, 20]]), Bbox([[10, 0], [20, 9]])]
    assert overlaps(boxes) == [(0, 1)]
