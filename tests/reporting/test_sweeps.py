"""The figure of a sweep draws what the sweep found."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest

from draftlab.reporting.figures.sweep import SWEEP_DRAWING, plot_sweep, sweep_table, write_sweep

if TYPE_CHECKING:
    from pathlib import Path


def swept(**grid: list[float]) -> pl.DataFrame:
    """Return a sweep's table with a log-loss of its own for each combination."""
    generator = np.random.default_rng(len(grid))
    rows = [
        {
            "run": "r", "pair": "T + D", "drafting": "greedy", "estimator": "vllm",
            **dict(zip(grid, values, strict=True)), "n": 5000,
            "log_loss": float(loss := generator.uniform(0.4, 0.6)), "ece": 0.02, "auc": 0.7,
            "regret": float(loss - 0.4), "refits": 9, "refused": 0, "overshoots": 0,
            "diverged": False,
        }
        for values in itertools.product(*grid.values())
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_two_constants_make_heat_maps_with_the_numbers_in_the_cells() -> None:
    table = swept(refit_interval=[25.0, 100.0], damping=[0.0, 10.0, 50.0])
    figure, drawn = plot_sweep(table)
    assert [axes.get_title("left") for axes in figure.axes] == [
        "log-loss, nats", "regret, nats", "ECE",
    ]  # fmt: skip
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == [f"{value:.4f}" for value in drawn["log_loss"]]
    assert drawn["log_loss"].to_list() == table["log_loss"].to_list()
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "10", "50"]


def test_of_more_constants_the_best_of_the_rest_is_drawn_and_said() -> None:
    table = swept(damping=[0.0, 50.0], ridge=[0.001, 1.0], start_slope=[0.0, 0.5, 1.0])
    _, drawn = plot_sweep(table)
    best = table.group_by("damping", "ridge").agg(pl.col("log_loss").min()).sort("damping", "ridge")
    assert drawn.height == 4
    assert drawn["log_loss"].to_list() == best["log_loss"].to_list()
    assert "shows the start slope with the lowest log-loss" in SWEEP_DRAWING.caption(drawn)


def test_one_constant_makes_lines() -> None:
    figure, drawn = plot_sweep(swept(damping=[0.0, 10.0, 50.0]))
    [line] = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), drawn["log_loss"].to_numpy())


def test_an_undefined_cell_stays_empty_of_colour() -> None:
    table = swept(damping=[0.0, 50.0], ridge=[0.001, 1.0])
    none = pl.when(pl.col("damping") == 0).then(None).otherwise("regret").alias("regret")
    figure, _ = plot_sweep(table.with_columns(none))
    assert len(figure.axes[1].texts) == 4


def test_the_file_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    write_sweep(swept(damping=[0.0, 50.0], ridge=[0.001, 1.0]), path)
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in path.read_text()
    description = root.find("{http://www.w3.org/2000/svg}desc")
    assert description is not None
    assert "5,000 drafts" in (description.text or "")


@pytest.mark.parametrize("values", [[0.0, 50.0], [0.0]])
def test_the_best_combination_is_named_for_who_cannot_see(values: list[float]) -> None:
    _, drawn = plot_sweep(swept(damping=values, ridge=[0.001, 1.0]))
    best = drawn.sort("log_loss").row(0, named=True)
    assert f"damping {best['damping']:g}, ridge {best['ridge']:g}" in SWEEP_DRAWING.alt(drawn)


def test_whole_constants_are_printed_as_such() -> None:
    table = sweep_table(swept(refit_interval=[25.0, 100.0], ridge=[0.001, 1.0]))
    assert table.columns[:3] == ["refit_interval", "ridge", "n"]
    assert table["refit_interval"].dtype == pl.Int64
    assert table["ridge"].to_list() == [0.001, 1.0, 0.001, 1.0]
