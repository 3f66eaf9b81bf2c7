"""Recalibration: known truth, independent implementations, cases, the written file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from draftlab import metrics
from draftlab.errors import InputError
from draftlab.predictors.calibration import (
    CALIBRATORS,
    cumulative_ece,
    fit_calibrator,
    fit_sts,
    sts_grid,
)
from draftlab.studies.calibrate import Calibration, calibrate
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def random_rows(n: int = 6000, slope: float = 0.6, shift: float = 0.4) -> Arrays:
    rng = np.random.default_rng(0)
    z, position = rng.normal(0.5, 2.0, n), rng.integers(0, 2, n)
    return z, position, rng.random(n) < expit(slope * z + shift)


def loss(y: np.ndarray[Any, Any], logit: np.ndarray[Any, Any]) -> float:
    return metrics.log_loss(y, logit)


# --- calibrators against independent optimisers


def test_temperature_is_the_maximum_likelihood() -> None:
    z, position, y = random_rows(shift=0.0)
    one = fit_calibrator("temperature", z, position, y, 2).maps[0]
    best = minimize_scalar(lambda t: loss(y, z / t), bounds=(0.1, 10), method="bounded")
    assert one.parameters["temperature"] == pytest.approx(best.x, abs=1e-3)
    assert loss(y, one.apply(z)) <= best.fun + 1e-12


def test_beta_is_the_maximum_likelihood_with_signs() -> None:
    z, position, y = random_rows()
    one = fit_calibrator("beta", z, position, y, 2).maps[0]
    p = expit(z)

    def negative(abc: np.ndarray[Any, Any]) -> float:
        return loss(y, abc[0] * np.log(p) - abc[1] * np.log1p(-p) + abc[2])

    best = minimize(negative, [1.0, 1.0, 0.0], method="Nelder-Mead", tol=1e-10)
    found = [one.parameters[name] for name in "abc"]
    np.testing.assert_allclose(found, best.x, atol=1e-3)
    assert loss(y, one.apply(z)) == pytest.approx(best.fun, abs=1e-9)
    # what would need a negative weight gets none
    odd = fit_calibrator("beta", z, position, np.random.default_rng(1).random(len(z))
                         < expit(-3 + np.logaddexp(0, z)), 2)  # fmt: skip
    assert min(odd.maps[0].parameters[name] for name in "ab") >= 0


def test_isotonic_is_scikit_learns_within_half_a_row() -> None:
    z, position, y = random_rows()
    one = fit_calibrator("isotonic", z, position, y, 2).maps[0]
    other = IsotonicRegression(out_of_bounds="clip").fit(z, y.astype(float)).predict(z)
    np.testing.assert_allclose(expit(one.apply(z)), other, atol=0.5 / len(z) + 1e-12)
    assert np.isfinite(one.apply(np.array([-100.0, 100.0]))).all()


@pytest.mark.parametrize("method", CALIBRATORS)
def test_each_method_improves_what_it_was_fitted_to(method: str) -> None:
    z, position, y = random_rows()
    one = fit_calibrator(method, z, position, y, 2)
    each = fit_calibrator(method, z, position, y, 2, per_position=True)
    assert loss(y, one.log_odds(z, position)) < loss(y, z)
    assert loss(y, each.log_odds(z, position)) <= loss(y, one.log_odds(z, position)) + 1e-9
    alone = fit_calibrator(method, z[position == 1], position[position == 1] * 0,
                           y[position == 1], 1)  # fmt: skip
    np.testing.assert_array_equal(
        each.log_odds(z, position)[position == 1], alone.maps[0].apply(z[position == 1])
    )


@pytest.mark.parametrize("method", CALIBRATORS)
def test_separable_data_are_left_as_they_are(method: str) -> None:
    z, y = np.array([-40.0, 40.0]), np.array([False, True])  # p = 0 and 1, clamped
    one = fit_calibrator(method, z, np.zeros(2, dtype=int), y, 1)
    after = one.log_odds(z, np.zeros(2, dtype=int))
    np.testing.assert_array_equal(after, z)
    assert metrics.auc(y, after) == 1.0
    assert metrics.ece(y, expit(after)) == pytest.approx(0.0, abs=1e-12)
    assert one.maps[0].note == "identity: separable, every order is right"
    same = fit_calibrator(method, z, np.zeros(2, dtype=int), np.array([True, True]), 1)
    assert same.maps[0].note == "identity: rows of one class only"


def test_calibrators_name_what_they_cannot_fit() -> None:
    z, position, y = random_rows(100)
    with pytest.raises(ValueError, match="unknown method 'spline'; known: temperature"):
        fit_calibrator("spline", z, position, y, 2)
    with pytest.raises(ValueError, match="one shape"):
        fit_calibrator("platt", z, position[:3], y, 2)
    reversed_labels = np.random.default_rng(0).random(6000) < expit(-random_rows()[0])
    fit = fit_calibrator("temperature", random_rows()[0], random_rows()[1], reversed_labels, 2)
    assert "no temperature fits" in str(fit.maps[0].note)
    thin = fit_calibrator("platt", z, position, y, 2).maps[0]
    assert str(thin.note).startswith("thin data: 100 rows")


# --- STS


def test_the_grid_is_deepspecs() -> None:
    grid = sts_grid()
    assert len(grid) == 257
    assert (grid[0], grid[-1]) == pytest.approx((0.05, 20.0))
    assert 1.0 in grid


def test_sts_equals_its_rule_written_out() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(1.0, 1.5, size=(400, 3))
    z[300:, 2] = np.nan
    survived = np.cumprod(rng.random((400, 3)) < expit(0.5 * z), axis=1).astype(bool)
    found = fit_sts(z, survived)
    chosen: list[float] = []
    for k in range(3):
        known = np.isfinite(z[:, k])
        best, winner = np.inf, np.nan
        for t in sts_grid():
            prob = np.ones(known.sum())
            for i, earlier in enumerate([*chosen, t]):
                prob = prob * expit(z[known, i] / earlier)
            error = 0.0
            index = np.minimum(np.floor(prob * 20), 19)
            for b in range(20):
                inside = index == b
                if inside.any():
                    gap = prob[inside].mean() - survived[known, k][inside].mean()
                    error += abs(gap) * inside.mean()
            if error < best - 1e-15:
                best, winner = error, t
        chosen.append(winner)
        assert found.ece_after[k] == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(found.temperatures, chosen)
    assert found.counts.tolist() == [400, 400, 300]


def test_an_unseen_position_keeps_one_and_edges_are_flagged() -> None:
    rng = np.random.default_rng(0)
    z = np.full((500, 2), np.nan)
    z[:, 0] = 0.05 * rng.normal(size=500)
    survived = np.zeros((500, 2), dtype=bool)
    survived[:, 0] = rng.random(500) < expit(40 * z[:, 0])
    found = fit_sts(z, survived)
    assert found.temperatures[1] == 1.0
    assert found.at_edge.tolist() == [True, False]
    assert found.thin.tolist() == [False, True]
    assert np.isnan(found.ece_after[1])
    assert np.isnan(cumulative_ece(np.zeros(0), np.zeros(0, dtype=bool)))


# --- the experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = synth_log(
        tmp_path_factory.mktemp("log"), num_requests=300, slope=0.5, intercepts=[0.3] * 5
    )
    (part,) = (run / "drafts").glob("part-*.parquet")
    rows = pl.read_parquet(part)
    rows.with_columns(confidence=pl.col("logit_qmax") * 0.5 + 0.3).write_parquet(part)
    return run


@pytest.fixture(scope="module")
def found(run: Path) -> Calibration:
    return calibrate(run)


def only(found: Calibration, **where: Any) -> dict[str, Any]:
    rows = found.metrics.filter(pl.col("position").is_null(), **where)
    return rows.row(0, named=True)


def test_qmax_is_recalibrated_and_a_right_head_is_left_alone(found: Calibration) -> None:
    raw = only(found, source="qmax", method="none", view="conditional")
    for method in ("platt", "beta", "isotonic"):
        after = only(found, source="qmax", method=method, per_position=False)
        assert after["log_loss_gain_low"] > 0
        assert after["ece"] < 0.5 * raw["ece"]
        assert after["smooth_ece"] < 0.6 * raw["smooth_ece"]
    head = only(found, source="confidence", method="platt", per_position=False)
    assert abs(head["log_loss_gain"]) < 2e-3
    value = found.calibrators.filter(
        source="confidence", method="platt", parameter="slope", per_position=False
    )["value"].item()
    assert value == pytest.approx(1.0, abs=0.1)


def test_sts_meets_survival_labels_on_other_prompts(found: Calibration) -> None:
    raw = only(found, source="qmax", method="none", view="survival")
    after = only(found, source="qmax", method="sts", view="survival")
    assert raw["n"] == after["n"] == 150 * 20 * 5
    assert after["ece"] < 0.6 * raw["ece"]
    assert after["ece_bins"] == 20
    sts = found.temperatures.filter(source="qmax")
    assert sts["n"].to_list() == [150 * 20] * 5
    assert (sts["ece_after"] <= sts["ece_before"]).all()


@pytest.mark.slow
def test_the_file_loads_under_each_engines_keys(run: Path, tmp_path: Path) -> None:
    folder = calibrate(run, out=tmp_path).write(tmp_path)
    content = json.loads((folder / "calibration.json").read_text())
    assert content["source"] == "confidence"
    assert content["temperatures"] == content["sts_temperatures"]
    assert len(content["temperatures"]) == content["block_size"] == 5
    assert min(content["temperatures"]) > 0
    assert content["sampling"]["temperature"] == 1.0
    assert content["data_hash"]
    assert content["grid"] == {"min": 0.05, "max": 20.0, "size": 256, "also": 1.0}
    assert content["num_records"] + content["num_records_graded"] == 300 * 20
    other = json.loads((folder / "calibration-qmax.json").read_text())
    assert other["ece_after"] < other["ece_before"]
    assert (folder / "metrics.parquet").exists()


def test_a_trimmed_log_is_refused(tmp_path: Path) -> None:
    rows = [proposal(i, [i % 3 > 0, None], request=i % 7, admitted=[True, False],
                     verify_step=np.ma.array([i, 0], mask=[False, True]))
            for i in range(40)]  # fmt: skip
    log = write_log(tmp_path, rows, adaptive_verification="estimator")
    with pytest.raises(InputError, match="chose which drafts were verified"):
        calibrate(log)
    assert calibrate(log, allow_trimmed=True).metrics.height > 0


def test_positions_without_rows_are_null_in_the_file(tmp_path: Path) -> None:
    run = synth_log(tmp_path / "log", num_requests=40, num_positions=4)
    (part,) = (run / "drafts").glob("part-*.parquet")
    rows = pl.read_parquet(part)
    rows.filter(pl.col("position") < 3).write_parquet(part)
    found = calibrate(run, out=tmp_path)
    content = found.calibration["qmax"]
    assert content["cumulative_ece_after"][3] is None
    assert content["temperatures"][3] == 1.0
    assert any("positions [3]: no row reaches it" in note for note in map(str, found.notes))
    assert found.metrics.filter(position=3, view="survival")["n"].unique().to_list() == [0]


def test_bad_input_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown source 'entropy'; known: confidence, qmax"):
        calibrate(run, sources=["entropy"])
    with pytest.raises(InputError, match="unknown method 'spline'"):
        calibrate(run, methods=["spline"])
    with pytest.raises(InputError, match="n_bins must be at least 1"):
        calibrate(run, n_bins=0)
    synth_log(tmp_path, num_requests=8, run="a")
    with pytest.raises(InputError, match="holds no confidence"):
        calibrate(tmp_path, sources=["confidence"])
    synth_log(tmp_path, num_requests=8, run="b", num_positions=3)
    with pytest.raises(InputError, match="belongs to one pair, K and drafting, got a "):
        calibrate(tmp_path)
