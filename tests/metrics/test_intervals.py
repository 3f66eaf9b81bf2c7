"""Intervals by group: by hand, against slower formulas, and by their coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from scipy.special import expit
from scipy.stats import t

from draftlab import metrics
from draftlab.grading.differences import difference_table
from draftlab.grading.grade import Grade, grade
from draftlab.grading.rows import GradedRows, arrange, order_of_values, stable_order
from draftlab.metrics.intervals import auc_influence, auc_interval, mean_interval
from draftlab.metrics.ranking import row_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

EXACT = 1e-12

REPETITIONS = 500
ENOUGH_TO_FAIL = 150  # of them for the intervals by row, which miss by far
NUM_GROUPS = 60
STEPS = 8
POSITIONS = 2
FOLDS = 5


def test_mean_interval_by_hand() -> None:
    # sums 3 and 7 over 2 rows each: influences (3 - 5) / 4 and (7 - 5) / 4, squares 0.25 each
    estimate, low, high = mean_interval([1.0, 2.0, 3.0, 4.0], [5, 5, 9, 9])
    half = t.ppf(0.975, 1) * np.sqrt(2 / 1 * 0.5)
    assert estimate == 2.5
    assert (low, high) == pytest.approx((2.5 - half, 2.5 + half), abs=EXACT)


def test_one_row_a_group_is_the_textbook_interval() -> None:
    values = np.random.default_rng(0).normal(size=50)
    estimate, low, high = mean_interval(values, np.arange(50))
    half = t.ppf(0.975, 49) * values.std(ddof=1) / np.sqrt(50)
    assert (estimate, low) == pytest.approx((values.mean(), values.mean() - half), abs=EXACT)
    assert high == pytest.approx(values.mean() + half, abs=EXACT)


def test_auc_interval_is_that_of_delong_with_one_row_a_group() -> None:
    rng = np.random.default_rng(0)
    y, score = rng.random(400) < 0.6, rng.normal(size=400).round(1)
    score = score + 0.5 * y
    over = np.sign(score[y][:, None] - score[~y][None, :]) / 2 + 0.5
    variance = over.mean(axis=1).var(ddof=1) / y.sum() + over.mean(axis=0).var(ddof=1) / (~y).sum()
    estimate, low, high = auc_interval(y, score, np.arange(400))
    assert estimate == pytest.approx(metrics.auc(y, score), abs=EXACT)
    # DeLong centres each class by itself and divides by its own size less one
    assert high - estimate == pytest.approx(t.ppf(0.975, 399) * np.sqrt(variance), rel=2e-3)
    assert estimate - low == pytest.approx(high - estimate, abs=EXACT)


def test_auc_interval_agrees_with_a_jackknife_by_group() -> None:
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(80), rng.integers(5, 15, 80))
    score = rng.normal(size=len(group)) + rng.normal(size=80)[group]
    y = rng.random(len(group)) < expit(score + rng.normal(size=80)[group])
    left_out = np.array([metrics.auc(y[group != g], score[group != g]) for g in range(80)])
    variance = 79 / 80 * ((left_out - left_out.mean()) ** 2).sum()
    estimate, low, _ = auc_interval(y, score, group)
    half = t.ppf(0.975, 79) * np.sqrt(variance)
    assert estimate - low == pytest.approx(half, rel=0.03)


def test_auc_influence_is_the_change_when_a_cluster_counts_a_little_more() -> None:
    """Differentiate the weighted AUC of each entry; then take off the mean of each fold."""
    rng = np.random.default_rng(3)
    n, clusters = 400, 24
    cluster = rng.integers(0, clusters, n)
    entry, fold = np.arange(clusters) % 2, np.arange(clusters) // 2 % 3
    y, score = rng.random(n) < 0.6, rng.normal(size=n).round(1)
    place = (entry * 3 + fold)[cluster]
    wins, chances = (np.bincount(cluster, v, clusters) for v in row_pairs(y, score, place))
    found, influence = auc_influence(wins, chances, entry, fold, 2)

    def weighted(weight: Any, chosen: int) -> float:
        right = pairs = 0.0
        for i in np.flatnonzero(y & (entry[cluster] == chosen)):
            other = ~y & (place == place[i])
            weights = weight[cluster[i]] * weight[cluster[other]]
            right += (weights * (np.sign(score[i] - score[other]) / 2 + 0.5)).sum()
            pairs += weights.sum()
        return float(right / pairs)

    def share(code: int) -> float:
        return float(chances[code] / chances[entry == entry[code]].sum())

    one = np.ones(clusters)
    of_place = np.array([wins[entry * 3 + fold == p].sum() for p in range(6)]) / np.array(
        [chances[entry * 3 + fold == p].sum() for p in range(6)]
    )
    for code in range(clusters):
        assert found[entry[code]] == pytest.approx(weighted(one, int(entry[code])), abs=EXACT)
        step = 1e-6 * (np.arange(clusters) == code)
        up, down = (weighted(one + d, int(entry[code])) for d in (step, -step))
        # the derivative is centred at the AUC of all folds, the influence at that of the own one
        own = of_place[entry[code] * 3 + fold[code]] - found[entry[code]]
        expected = (up - down) / 2e-6 - 2 * share(code) * own
        assert influence[code] == pytest.approx(expected, abs=1e-8)
    assert np.bincount(entry * 3 + fold, influence) == pytest.approx(np.zeros(6), abs=EXACT)


def test_one_group_has_no_interval() -> None:
    assert np.isnan(mean_interval([1.0, 2.0], [0, 0])[1:]).all()
    assert np.isnan(auc_interval([1, 0], [1.0, 0.0], [3, 3])[1:]).all()
    assert np.isnan(auc_interval([1, 1], [1.0, 0.0], [0, 1])).all()


# --- coverage


def repetitions(seed: int = 0) -> Iterator[tuple[GradedRows, GradedRows, np.ndarray[Any, Any]]]:
    """Yield rows by group, the same rows each a group of its own, and two predictors' log-odds.

    A request shifts the chance of all its labels and the second predictor's log-odds.
    """
    rng = np.random.default_rng(seed)
    n = NUM_GROUPS * STEPS * POSITIONS
    request = np.repeat(np.arange(NUM_GROUPS), STEPS * POSITIONS)
    position = np.tile(np.arange(POSITIONS), NUM_GROUPS * STEPS)
    keys: dict[str, Any] = {
        "position": position,
        "dataset": np.zeros(n, dtype=np.int64),
        "fold": request % FOLDS,
        "datasets": ("a",),
        "num_positions": POSITIONS,
        "num_folds": FOLDS,
    }
    for _ in range(REPETITIONS):
        effect = 1.5 * rng.normal(size=NUM_GROUPS)[request]
        first = rng.normal(0.5, 0.8, n) - 0.4 * position + rng.normal(size=NUM_GROUPS)[request]
        second = first + 0.8 * rng.normal(size=NUM_GROUPS)[request] + 0.5 * rng.normal(size=n)
        accepted = rng.random(n) < expit(first + effect)
        by_group, order = arrange(accepted=accepted, group=request, **keys)
        # the first key that differs is the fold, then the position: the same order of rows
        by_row, same = arrange(accepted=accepted, group=np.arange(n), **keys)
        np.testing.assert_array_equal(order, same)
        yield by_group, by_row, np.stack([first, second])[:, order]


def overall(
    rows: GradedRows, logits: np.ndarray[Any, Any]
) -> dict[str, tuple[float, float, float]]:
    one, zero = np.ones((FOLDS, POSITIONS)), np.zeros((FOLDS, POSITIONS))
    grades: dict[str, Grade] = {
        name: grade(rows, logit, one, zero, 15, scopes=("overall", "without_first", "position"))
        for name, logit in zip(("first", "second"), logits, strict=True)
    }
    row = grades["first"].table.row(0, named=True)
    found = {
        name: (row[name], row[f"{name}_low"], row[f"{name}_high"])
        for name in ("auc", "log_loss", "brier", "mean_prediction")
    }
    differences = difference_table(rows, grades).filter(scope="overall")
    for gap in differences.filter(pl.col("metric") != "ece").rows(named=True):
        found[f"difference of {gap['metric']}"] = (gap["difference"], gap["low"], gap["high"])
    return found


@pytest.fixture(scope="module")
def coverage() -> dict[str, dict[str, float]]:
    """Return the share of intervals that hold the expected value, by unit and metric."""
    by_group: list[dict[str, tuple[float, float, float]]] = []
    by_row: list[dict[str, tuple[float, float, float]]] = []
    for groups, rows, logits in repetitions():
        by_group.append(overall(groups, logits))
        if len(by_row) < ENOUGH_TO_FAIL:
            by_row.append(overall(rows, logits))
    shares: dict[str, dict[str, float]] = {}
    for unit, found in (("group", by_group), ("row", by_row)):
        for name in found[0]:
            estimate, low, high = np.array([one[name] for one in found]).T
            truth = estimate.mean()
            shares.setdefault(unit, {})[name] = float(np.mean((low <= truth) & (truth <= high)))
    return shares


SCORED = ("auc", "log_loss", "brier", "difference of auc", "difference of log_loss",
          "difference of brier", "mean_prediction")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORED)
def test_intervals_by_group_hold_the_truth_as_often_as_they_say(
    coverage: dict[str, dict[str, float]], name: str
) -> None:
    assert 0.92 <= coverage["group"][name] <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORED)
def test_intervals_by_row_are_too_short(coverage: dict[str, dict[str, float]], name: str) -> None:
    assert coverage["row"][name] < 0.92


# --- orders


def test_orders_are_exact() -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(0, 50, 1000)
    np.testing.assert_array_equal(stable_order(code), np.argsort(code, kind="stable"))
    huge = code << 56
    np.testing.assert_array_equal(stable_order(huge), np.argsort(huge, kind="stable"))
    for values in (
        rng.normal(size=1000).astype(np.float32).astype(np.float64),
        rng.normal(size=1000),
        np.array([0.0, -0.0, 40.0, -40.0, 1e-45, -1e-45]),
    ):
        np.testing.assert_array_equal(values[order_of_values(values)], np.sort(values))
