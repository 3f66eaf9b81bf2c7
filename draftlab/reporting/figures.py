"""Figures by position and workload. Each function returns the figure and the table it draws."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from draftlab.reporting.style import (
    COLOURS,
    INK,
    MUTED,
    Drawing,
    add_legend,
    new_axes,
    styled,
)
from draftlab.reporting.tables import (
    ADOPTED,
    MAX_OWN,
    by_position,
    format_number,
    of_cell,
    own_predictors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab.evaluation import Evaluation
    from draftlab.reporting.tables import Cell


class Line(NamedTuple):
    """How a predictor is drawn."""

    color: str
    style: str
    marker: str


LINES = {
    "logit_qmax": Line(COLOURS["blue"], "-", "o"),
    "log_qmax": Line(COLOURS["orange"], "-", "s"),
    "top2_margin": Line(COLOURS["green"], "-", "^"),
    "entropy": Line(COLOURS["orange"], "-", "D"),
    "logit_q_sampled": Line(COLOURS["purple"], "--", "v"),
    "qmax": Line(COLOURS["sky"], "-", "P"),
    "confidence": Line(COLOURS["red"], "-", "X"),
    "per_position": Line(MUTED, "--", ""),
    "overlap": Line(MUTED, ":", ""),
}
OWN_LINES = (Line(INK, "-.", "*"), Line(INK, ":", "h"), Line(INK, "--", "p"))
"""Predictors of a plugin, in their order."""
LOSS_BY_POSITION = (
    "logit_qmax", "log_qmax", "qmax", "logit_q_sampled", "confidence", "per_position", "overlap",
)  # fmt: skip


@styled
def plot_auc_by_position(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw AUC at each position (the published F1).

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, auc, auc_low, auc_high.
    """
    table = by_position(evaluation, cell).select(
        "predictor", "name", "position", "n", "auc", "auc_low", "auc_high"
    )
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "auc")
    axes.set_ylabel("AUC")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_log_loss_by_position(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw log-loss at each position.

    Returns
    -------
    Figure, DataFrame
        Table: predictor, name, position, n, log_loss (nats), log_loss_low, log_loss_high.
    """
    wanted = [*LOSS_BY_POSITION, *own_predictors(evaluation)[:MAX_OWN]]
    table = by_position(evaluation, cell, wanted).select(
        "predictor", "name", "position", "n", "log_loss", "log_loss_low", "log_loss_high"
    )
    figure, axes = new_axes(3.0)
    _draw_lines(axes, table, "log_loss")
    axes.set_ylabel("log-loss, nats")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_acceptance(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw conditional acceptance and survival at each position, all workloads together.

    Returns
    -------
    Figure, DataFrame
        Table: position, n_admitted, n_observed, n_accepted, conditional_rate, survival_rate.
    """
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_null())
    table = rows.select(
        "position", "n_admitted", "n_observed", "n_accepted", "conditional_rate", "survival_rate"
    )
    figure, axes = new_axes(2.6)
    for column, color, marker, name in (
        ("conditional_rate", "blue", "o", "conditional"),
        ("survival_rate", "red", "s", "survival"),
    ):
        axes.plot(
            table["position"].to_list(), table[column].to_list(), color=COLOURS[color],
            marker=marker, label=name,
        )  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_ylabel("share accepted")
    _position_axis(axes, cell)
    add_legend(figure, axes)
    return figure, table


@styled
def plot_workloads(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw conditional acceptance by workload and position, the easiest workload on top.

    Returns
    -------
    Figure, DataFrame
        Table: dataset, position, n_observed, n_accepted, conditional_rate.
    """
    table = _workloads(evaluation, cell).select(
        "dataset", "position", "n_observed", "n_accepted", "conditional_rate"
    )
    return _draw_tiles(table, "conditional_rate", cell), table


@styled
def plot_workload_survival(evaluation: Evaluation, cell: Cell) -> tuple[Figure, pl.DataFrame]:
    """Draw survival by workload and position, in the same order of workloads.

    Returns
    -------
    Figure, DataFrame
        Table: dataset, position, n_admitted, n_accepted, survival_rate.
    """
    table = _workloads(evaluation, cell).select(
        "dataset", "position", "n_admitted", "n_accepted", "survival_rate"
    )
    return _draw_tiles(table, "survival_rate", cell), table


def _draw_tiles(table: pl.DataFrame, column: str, cell: Cell) -> Figure:
    """Draw a tile for each workload and position, its value in it."""
    datasets = table["dataset"].unique(maintain_order=True).to_list()
    K = cell.num_speculative_tokens
    figure, axes = new_axes(4.0)
    axes.set_xlabel("draft position")
    tiles = [
        Tile(position, datasets.index(dataset), rate)
        for dataset, position, rate in table.select("dataset", "position", column).iter_rows()
    ]
    names = shorten_all(datasets, 24 if K <= 8 else 16)
    positions = [str(position) for position in range(K)]
    if tiles:
        fill_heat_map(figure, axes, tiles, names, positions, _RATES, _RATE_FORMS)
    return figure


LEAST_SIZE = 8
"""Points: smaller text is not read on a phone."""
_GAP = 0.04
"""Inches between texts that stand side by side."""
_TALL, _USUAL, _TALLEST = 0.31, 4.5, 6.5
"""Inches: a row of tiles, all rows together, and all rows where there are ever so many."""


class Tile(NamedTuple):
    """A tile of a heat map; row 0 is on top."""

    column: int
    row: int
    value: float


class Shading(NamedTuple):
    """What colour a value has: none at 0 or below, all of it at the most."""

    color: str
    most: float
    meaning: str
    """Of the values; printed where a scale replaces numbers."""

    def strength(self, value: float) -> float:
        """Return the opacity of a value; 0 where it is not a number."""
        if math.isnan(value):
            return 0.0
        return 0.75 * min(max(value / self.most, 0.0), 1.0)


class Form(NamedTuple):
    """How the numbers of a heat map are written."""

    size: float
    digits: int
    factor: float = 1.0
    unit: str = ""
    """Added to the label of the horizontal axis."""

    def spell(self, value: float) -> str:
        """Return the text of a tile."""
        return format_number(self.factor * value, self.digits)


_RATES = Shading("sky", 1.0, "share accepted")
_RATE_FORMS = (
    Form(9, 3),
    Form(LEAST_SIZE, 3),
    Form(LEAST_SIZE, 2),
    Form(LEAST_SIZE, 0, 100, ", tiles in %"),
)


def fill_heat_map(
    figure: Figure,
    axes: Axes,
    tiles: Sequence[Tile],
    rows: Sequence[str],
    columns: Sequence[str],
    shading: Shading,
    forms: Sequence[Form],
) -> None:
    """Draw tiles with names beside them, and numbers in the first form that fits every tile.

    Where none fits, a scale of colours stands above. The figure grows with its rows.
    """
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    least = _line(LEAST_SIZE) * len(rows)
    height = min(max(min(_TALL * len(rows), _USUAL), least), _TALLEST)
    _name_tiles(figure, axes, rows, columns, height)
    tile = (size_of(figure, axes)[0] / len(columns), height / len(rows))
    form = next((form for form in forms if _fits(figure, tiles, form, tile)), None)
    if form is None:
        height = min(max(tile[0], _line(9)) * len(rows), height)
        _add_scale(figure, shading)
    set_height(figure, axes, height)
    _draw_shades(axes, tiles, shading)  # many artists: after all that has to be laid out
    if form is not None:
        _write_numbers(axes, tiles, form)


def _draw_shades(axes: Axes, tiles: Sequence[Tile], shading: Shading) -> None:
    from matplotlib.patches import Rectangle

    color = COLOURS[shading.color]
    for column, row, value in tiles:
        strength, corner = shading.strength(value), (column - 0.5, row - 0.5)
        if strength > 0:
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=color, alpha=strength, linewidth=0))


def _name_tiles(
    figure: Figure, axes: Axes, rows: Sequence[str], columns: Sequence[str], height: float
) -> None:
    """Name rows and columns; where names of columns fit neither way, these are numbered."""
    size = 9 if len(rows) <= _FEW else LEAST_SIZE
    axes.set_xticks([])
    every = _pick_step(len(rows), height, _line(size))
    axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize=size)
    width = size_of(figure, axes)[0]
    widest = max(text_size(figure, name, size)[0] for name in columns)
    if (widest + _GAP) * len(columns) <= width:
        axes.set_xticks(range(len(columns)), columns, fontsize=size)
    elif rows != columns:  # positions, which are numbers already
        every = _pick_step(len(columns), width, widest + _GAP)
        axes.set_xticks(range(0, len(columns), every), columns[::every], fontsize=size)
    elif _line(size) * len(columns) <= width:
        axes.set_xticks(range(len(columns)), columns, fontsize=size, rotation=90)
    else:
        numbers = [str(i + 1) for i in range(len(columns))]
        names = [f"{name}  {number}" for name, number in zip(rows, numbers, strict=True)]
        _name_tiles(figure, axes, names, numbers, height)


_FEW = 16
"""Names that have the room for the usual size of text."""


def _pick_step(count: int, length: float, each: float) -> int:
    """Return which of so many labels are printed along a length: every n-th."""
    return next((n for n in (1, 2, 5, 10, 20, 50) if each * count <= n * length), 100)


def _fits(figure: Figure, tiles: Sequence[Tile], form: Form, room: tuple[float, float]) -> bool:
    """Whether every number of a heat map stays inside a tile of this width and height."""
    texts = {form.spell(tile.value) for tile in tiles}
    longest = sorted(texts, key=lambda text: (len(text), text))[-_LONGEST:]  # the widest is here
    widest = max((text_size(figure, text, form.size)[0] for text in longest), default=0.0)
    return widest + _GAP <= room[0] and _line(form.size) <= room[1]


_LONGEST = 20


def _write_numbers(axes: Axes, tiles: Sequence[Tile], form: Form) -> None:
    for column, row, value in tiles:
        axes.text(column, row, form.spell(value), ha="center", va="center", fontsize=form.size)
    axes.set_xlabel(axes.get_xlabel() + form.unit)


def _add_scale(figure: Figure, shading: Shading) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    color = COLOURS[shading.color]
    steps = [
        value for value in MaxNLocator(4).tick_values(0, shading.most) if value <= shading.most
    ]
    patches = [
        Patch(facecolor=(color, shading.strength(value)), edgecolor=MUTED, label=f"{value:g}")
        for value in steps
    ]
    figure.legend(
        handles=patches, loc="outside upper left", ncols=len(patches), title=shading.meaning,
        title_fontsize=9, alignment="left", columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip


def size_of(figure: Figure, axes: Axes) -> tuple[float, float]:
    """Return width and height of axes as they are now laid out, in inches."""
    engine = figure.get_layout_engine()
    if engine is not None:
        with _missing_glyphs():
            engine.execute(figure)
    box = axes.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def set_height(figure: Figure, axes: Axes, height: float) -> None:
    """Stretch a figure until its axes have this height, in inches."""
    missing = height - size_of(figure, axes)[1]
    figure.set_figheight(figure.get_figheight() + missing)


def text_size(figure: Figure, text: str, size: float) -> tuple[float, float]:
    """Return width and height of a text, in inches; its size in points."""
    probe = figure.text(0, 0, text, fontsize=size)
    with _missing_glyphs():
        box = probe.get_window_extent()
    probe.remove()
    return box.width / figure.dpi, box.height / figure.dpi


def _line(size: float) -> float:
    """Return the height of a line of text with the room around it, in inches."""
    return 1.3 * size / 72


@contextlib.contextmanager
def _missing_glyphs() -> Iterator[None]:
    """Measure names that our font cannot print: the reader's browser can."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _position_axis(axes: Axes, cell: Cell) -> None:
    axes.set_xlabel("draft position")
    axes.set_xticks(range(cell.num_speculative_tokens))


def _draw_lines(axes: Axes, table: pl.DataFrame, column: str) -> None:
    names = table["predictor"].unique(maintain_order=True).to_list()
    lines = pick_lines(names)
    for predictor in names:
        rows = table.filter(predictor=predictor)
        line = lines[predictor]
        main = predictor == ADOPTED
        axes.plot(
            rows["position"].to_list(), rows[column].to_list(), color=line.color,
            linestyle=line.style, marker=line.marker, linewidth=2.6 if main else 1.4,
            zorder=3 if main else 2, label=rows["name"][0],
        )  # fmt: skip
        axes.fill_between(
            rows["position"].to_list(), rows[f"{column}_low"].to_numpy(),
            rows[f"{column}_high"].to_numpy(), color=line.color, alpha=0.12,
            linewidth=0,
        )  # fmt: skip


def pick_lines(predictors: Sequence[str]) -> dict[str, Line]:
    """Return how each predictor is drawn: ours always alike, others in black."""
    others = itertools.cycle(OWN_LINES)
    return {name: LINES.get(name) or next(others) for name in predictors}


def _workloads(evaluation: Evaluation, cell: Cell) -> pl.DataFrame:
    """Return the acceptance of each workload, the highest overall rate first."""
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_not_null())
    overall = pl.col("n_accepted").sum().over("dataset") / pl.col("n_observed").sum().over(
        "dataset"
    )
    return (
        rows.with_columns(overall=overall)
        .sort("overall", "dataset", "position", descending=[True, False, False])
        .drop("overall")
    )


def shorten(name: str, limit: int = 24) -> str:
    """Return a name that fits beside an axis."""
    return name if len(name) <= limit else name[: limit - 1] + "…"


def shorten_all(names: Sequence[str], limit: int) -> list[str]:
    """Return names that fit beside an axis and stay distinct, cut where they are alike.

    Examples
    --------
    >>> shorten_all(["code", "a long name of prose"], 12)
    ['code', 'a long name…']
    >>> shorten_all(["workload-of-low-entropy", "workload-of-high-entropy"], 13)
    ['…-low-entropy', '…high-entropy']
    """
    short = {name: shorten(name, limit) for name in names}
    for alike in _find_alike(short):
        short |= {name: _cut_middle(name, limit) for name in alike}
    for _ in range(2):  # a group may hold groups
        for alike in _find_alike(short):
            short |= {name: _cut_start(name, limit, alike) for name in alike}
    if _find_alike(short):
        short = {name: shorten(f"{i} {name}", limit) for i, name in enumerate(short, 1)}
    return [short[name] for name in names]


def _find_alike(short: dict[str, str]) -> list[list[str]]:
    """Return groups of names whose short forms are one and the same."""
    groups: dict[str, list[str]] = {}
    for name, form in short.items():
        groups.setdefault(form, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _cut_middle(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    tail = (limit - 1) // 2
    return name[: limit - 1 - tail] + "…" + name[-tail:]


def _cut_start(name: str, limit: int, alike: Sequence[str]) -> str:
    """Cut what a name begins with like the others, and more where only its end differs."""
    if len(name) <= limit:
        return name
    common = 0
    while len({other[: common + 1] for other in alike}) == 1:
        common += 1
    word = len(re.sub(r"\w+$", "", name[:common])) or common
    start = min(word, len(name) - limit + 1)
    return "…" + shorten(name[start:], limit - 1)


def _count_by_position(table: pl.DataFrame) -> str:
    first = table.filter(pl.col("predictor") == pl.col("predictor").first())
    counts = ", ".join(format_number(n) for n in first["n"])
    return f"n = {counts} rows at positions 0 to {len(first) - 1}."


def _spell_lines(table: pl.DataFrame, column: str) -> str:
    parts = []
    for predictor in table["predictor"].unique(maintain_order=True):
        rows = table.filter(predictor=predictor)
        values = ", ".join(format_number(v, 3) for v in rows[column])
        parts.append(f"{rows['name'][0]} {values}")
    return f"By position from 0: {'; '.join(parts)}."


def _spell_acceptance(table: pl.DataFrame) -> str:
    conditional = ", ".join(format_number(v, 3) for v in table["conditional_rate"])
    survival = ", ".join(format_number(v, 3) for v in table["survival_rate"])
    return f"By position from 0: conditional {conditional}; survival {survival}."


def _spell_workloads(table: pl.DataFrame, column: str) -> str:
    parts = []
    for dataset in table["dataset"].unique(maintain_order=True):
        values = table.filter(dataset=dataset)[column]
        parts.append(f"{dataset} {', '.join(format_number(v, 3) for v in values)}")
    return f"By position from 0: {'; '.join(parts)}."


def _acceptance_caption(table: pl.DataFrame) -> str:
    observed = ", ".join(format_number(n) for n in table["n_observed"])
    admitted = ", ".join(format_number(n) for n in table["n_admitted"])
    return f"n = {observed} observed and {admitted} admitted drafts at positions 0 on."


POSITIONS = ("auc-by-position", "log-loss-by-position")
"""The first drawings; the others are of acceptance."""
DRAWINGS = (
    Drawing(
        "auc-by-position",
        "AUC by position",
        plot_auc_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "auc"),
        "Higher separates accepted from rejected drafts better; 0.5 is chance. Bands are 95 % by "
        "prompt. Only rows that drafts reached count, so n falls to the right. At one position "
        "log(qmax), -log(-log(qmax)), raw qmax and logit(qmax) order the rows alike and share "
        "one line.",
    ),
    Drawing(
        "log-loss-by-position",
        "Log-loss by position",
        plot_log_loss_by_position,
        _count_by_position,
        lambda table: _spell_lines(table, "log_loss"),
        "Lower is better. The per-position rate knows nothing of the draft, the overlap knows p: "
        "what a lossless predictor can gain lies between these two.",
    ),
    Drawing(
        "acceptance-by-position",
        "Acceptance by position",
        plot_acceptance,
        _acceptance_caption,
        _spell_acceptance,
        "Conditional: accepted, of the drafts that reached the position. Survival: accepted, of "
        "all that were sent; it can only fall with the position.",
    ),
    Drawing(
        "acceptance-by-workload",
        "Conditional acceptance by workload",
        plot_workloads,
        lambda table: f"n = {format_number(table['n_observed'].sum())} observed drafts.",
        lambda table: _spell_workloads(table, "conditional_rate"),
        "A stronger colour is more often accepted. Down a column workloads differ, along a row "
        "positions do; what differs down a column, one common intercept cannot follow.",
    ),
    Drawing(
        "survival-by-workload",
        "Survival by workload",
        plot_workload_survival,
        lambda table: f"n = {format_number(table['n_admitted'].sum())} admitted drafts.",
        lambda table: _spell_workloads(table, "survival_rate"),
        "The share of proposals that live up to each position: along a row it can only fall. Rows "
        "behind an accepted stop token count neither way, and only survivors can meet one, so deep "
        "positions of workloads that stop often read a little low.",
    ),
)
"""Figures of metrics and acceptance, in the report's order."""
