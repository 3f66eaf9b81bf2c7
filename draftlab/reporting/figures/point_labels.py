"""Names of points that keep clear of one another, of the points, their intervals and a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftlab.reporting.figures.layout import LEAST_SIZE, set_height, size_of, text_size
from draftlab.reporting.figures.shorten import shorten_all
from draftlab.reporting.figures.style import MUTED, WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from draftlab._types import BoolArray, FloatArray, IntArray


def name_points(figure: Figure, panels: Sequence[Axes], datasets: Sequence[str]) -> None:
    """Write names beside the points; where these have no room, numbers and a list of names."""
    height = size_of(figure, panels[0])[1]
    labels = shorten_all(datasets, 16)
    placed = [] if len(labels) > _MOST_NAMES else _place_in(figure, panels, labels, _NEAR)
    if not placed or any((costs >= _CROSSED).any() for _, _, costs in placed):
        labels = [str(i + 1) for i in range(len(datasets))]
        names = shorten_all(datasets, 24)
        _list_names(figure, [f"{i}  {name}" for i, name in zip(labels, names, strict=True)])
        set_height(figure, panels[0], height)
        size_of(figure, panels[0])  # lays out, so that points are where they will be
        placed = _place_in(figure, panels, labels, _FAR)
    for axes, (field, centres, costs) in zip(panels, placed, strict=True):
        for i, text in enumerate(labels):
            if costs[i] < _COVERED:  # what cannot be read is left out
                _write_label(axes, field, i, text, centres[i])


_MOST_NAMES, MOST_NUMBERS = 8, 40
_NEAR, _FAR = (5.0, 8.0), (5.0, 8.0, 12.0, 17.0, 23.0, 30.0, 38.0, 47.0, 57.0, 68.0)
"""Points from the middle of a marker to its label; a line leads to one that is far."""


def _list_names(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    widths = [text_size(figure, name, LEAST_SIZE)[0] + 0.13 for name in names]
    columns = next((n for n in (4, 3, 2) if _sum_columns(widths, n) <= WIDTH - 0.1), 1)
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * rows)  # too little would not be laid out
    figure.legend(
        [Line2D([], [], linestyle="") for _ in names], names, loc="outside upper left",
        ncols=-(-len(names) // rows), fontsize=LEAST_SIZE, handlelength=0, handletextpad=0,
        columnspacing=1.0,
    )  # fmt: skip


def _sum_columns(widths: Sequence[float], columns: int) -> float:
    """Return the width of a list; the first columns are the longer ones."""
    return sum(max(part, default=0.0) for part in np.array_split(widths, columns))


def _place_in(
    figure: Figure, panels: Sequence[Axes], labels: Sequence[str], radii: Sequence[float]
) -> list[tuple[_Field, FloatArray, FloatArray]]:
    """Return, for each panel, what is in it, the middle of each label and what that costs."""
    sizes = 72 * np.array([text_size(figure, label, LEAST_SIZE) for label in labels])
    fields = [_find_field(figure, axes, sizes) for axes in panels]
    return [(field, *_place_labels(field, radii)) for field in fields]


def _write_label(axes: Axes, field: _Field, i: int, label: str, centre: FloatArray) -> None:
    away = centre - field.points[i]
    gap = np.hypot(*np.maximum(np.abs(away) - field.sizes[i] / 2, 0))
    leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2.5}
    text = axes.annotate(
        label, tuple(field.values[i]), xytext=tuple(away),
        textcoords="offset points", ha="center", va="center", fontsize=LEAST_SIZE,
        arrowprops=leader if gap > _LEADER else None,
    )  # fmt: skip
    text.set_in_layout(False)


_LEADER = 9.0


class _Field(NamedTuple):
    """What the labels of a panel must keep clear of; in points, except values."""

    values: FloatArray
    """What is drawn: entropy and coefficient."""
    points: FloatArray
    sizes: FloatArray
    """Of the labels, point by point: width and height."""
    line: FloatArray
    """Points along the line and the intervals."""
    lowest: FloatArray
    """The corner of the panel, left and below."""
    highest: FloatArray


def _find_field(figure: Figure, axes: Axes, sizes: FloatArray) -> _Field:
    scale = 72 / figure.dpi
    line, values = (np.column_stack(drawn.get_data()) for drawn in axes.lines)
    line = np.concatenate([line, *_along_bars(axes)])
    to_points = axes.transData.transform
    box = axes.get_window_extent()
    return _Field(
        values, scale * to_points(values), sizes, scale * to_points(line),
        scale * np.array(box.min), scale * np.array(box.max),
    )  # fmt: skip


def _along_bars(axes: Axes) -> list[FloatArray]:
    """Return points along the intervals of the points, as close as those of a line."""
    bars: list[Any] = list(axes.collections)  # of vlines
    segments = [np.asarray(part) for drawn in bars for part in drawn.get_segments()]
    return [np.linspace(part[0], part[1], 30) for part in segments if len(part)]


_OUTSIDE, _COVERED, _CROSSED = 100.0, 10.0, 1.0
"""Costs of a label: out of the panel; on a point or label; on a line. Less: how far it is."""


def _place_labels(field: _Field, radii: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """Return the middle of each label and its cost, in the order of trying that costs least."""
    rng = np.random.default_rng(0)
    count = len(field.points)
    best = (np.empty(0), np.full(count, np.inf))
    for order in [np.arange(count), *(rng.permutation(count) for _ in range(_ORDERS - 1))]:
        found = _place_in_order(field, _offer_places(radii), order)
        if found[1].sum() < best[1].sum():
            best = found
        if (best[1] < _CROSSED).all():
            break
    return best


def _place_in_order(
    field: _Field, offer: tuple[FloatArray, FloatArray, FloatArray], order: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Move each label in turn where it costs least while the others stay."""
    centres, costs = np.full(field.points.shape, np.nan), np.full(len(order), np.nan)
    away, lean, preference = offer
    for _ in range(_SWEEPS):
        for i in order:
            offered = field.points[i] + away + lean * field.sizes[i] / 2
            cost = preference + _count_hits(field, centres, i, offered)
            centres[i], costs[i] = offered[cost.argmin()], cost.min()
    return centres, costs


_ORDERS, _SWEEPS = 8, 3
_APART = 4.0
"""Points between a label and the markers of others, lest it seem to be theirs."""


def _offer_places(radii: Sequence[float]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return places around a point: how far away, to which side of it, and what each costs.

    Above is best, then below, beside, above and below but moved to a side, and in between.
    """
    turns = np.array([0, 8, 4, 12, 0, 0, 8, 8, 2, 14, 6, 10, 1, 3, 5, 7, 9, 11, 13, 15])
    angles = np.pi / 2 + np.pi / 8 * turns
    ways = np.column_stack([np.cos(angles), np.sin(angles)])
    lean = np.round(ways)
    lean[4:8, 0] = (-0.6, 0.6, -0.6, 0.6)
    away = np.concatenate([radius * ways for radius in radii])
    preference = 0.01 * np.hypot(*away.T) + np.tile(0.01 * np.arange(len(ways)), len(radii))
    return away, np.tile(lean, (len(radii), 1)), preference


def _count_hits(field: _Field, centres: FloatArray, i: int, offered: FloatArray) -> FloatArray:
    """Return what each place for label ``i`` costs by what it hits while others stay."""
    half = field.sizes[i] / 2 + 1
    others = np.arange(len(centres)) != i
    points, labels, halves = field.points[others], centres[others], field.sizes[others] / 2
    outside = (offered - half < field.lowest) | (offered + half > field.highest)
    on_points = _meet(offered, points, half + _APART).sum(1)
    on_labels = _meet(offered, labels, half + halves).sum(1)
    lines = np.concatenate([field.line, _lead(points, labels).reshape(-1, 2)])
    own = _lead(field.points[i], offered)
    crossed = _meet(own, labels, halves + 1) | _meet(own, points, 3.0)
    return np.asarray(
        _OUTSIDE * outside.any(1)
        + _COVERED * (on_points + on_labels)
        + _CROSSED * (2 * _meet(offered, lines, half).any(1) + crossed.any((0, 2)))
    )


def _meet(centres: FloatArray, others: FloatArray, reach: FloatArray | float) -> BoolArray:
    """Whether each pair is closer than its reach in both directions; what is nowhere is not."""
    width, height = np.broadcast_to(reach, others.shape).T
    across = np.abs(centres[..., 0, None] - others[:, 0]) < width
    return np.asarray(across & (np.abs(centres[..., 1, None] - others[:, 1]) < height))


def _lead(start: FloatArray, end: FloatArray) -> FloatArray:
    """Return points on the way from markers to labels."""
    return np.asarray(start + np.linspace(0.2, 0.9, 10)[:, None, None] * (end - start))
