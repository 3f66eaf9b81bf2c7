"""Metrics: by hand, against scikit-learn, against brute force, and at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from draftlab import metrics

EXACT = 1e-12  # sums of some thousand float64 numbers in another order

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@st.composite
def labelled(draw: st.DrawFn) -> Arrays:
    """Labels and probabilities, many of them tied or on a bin's edge."""
    n = draw(st.integers(1, 40))
    edge = st.tuples(st.integers(0, 15), st.integers(1, 15)).map(lambda ij: min(1, ij[0] / ij[1]))
    prob = draw(st.lists(st.one_of(edge, st.floats(0, 1)), min_size=n, max_size=n))
    y = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(y), np.array(prob, dtype=float)


def random_rows(n: int = 3000, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    logit = rng.normal(0.5, 2.0, n)
    return rng.random(n) < expit(logit), logit


# --- AUC


def brute_auc(y: np.ndarray[Any, Any], score: np.ndarray[Any, Any]) -> float:
    difference = score[y][:, None] - score[~y][None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


@pytest.mark.slow
@settings(deadline=None)
@given(labelled())
def test_auc_is_the_share_of_ordered_pairs(rows: Arrays) -> None:
    y, score = rows
    if y.all() or not y.any():
        assert np.isnan(metrics.auc(y, score))
    else:
        assert metrics.auc(y, score) == pytest.approx(brute_auc(y, score), abs=EXACT)


def test_auc_equals_scikit_learn_and_survives_shuffling() -> None:
    y, logit = random_rows()
    logit = logit.round(1)  # ties
    assert metrics.auc(y, logit) == pytest.approx(roc_auc_score(y, logit), abs=EXACT)
    order = np.random.default_rng(1).permutation(len(y))
    assert metrics.auc(y[order], logit[order]) == metrics.auc(y, logit)
    assert metrics.auc(y, -logit) == pytest.approx(1 - metrics.auc(y, logit), abs=EXACT)
    assert metrics.auc(y, np.zeros(len(y))) == 0.5


def test_auc_of_one_class_is_undefined() -> None:
    assert np.isnan(metrics.auc([1, 1], [0.3, 0.4]))
    assert np.isnan(metrics.auc([], []))


def test_auc_within_folds_counts_the_pairs_of_each_fold() -> None:
    rng = np.random.default_rng(2)
    fold = rng.choice([0, 3, 4], 300)  # of 4 only one class
    y = (rng.random(300) < 0.6) | (fold == 4)
    score = rng.normal(size=300).round(1) + 0.3 * y + fold  # folds have no common order
    right = pairs = 0.0
    for accepted, above in zip(fold[y], score[y], strict=True):
        below = score[~y & (fold == accepted)]
        right += float((above > below).sum() + 0.5 * (above == below).sum())
        pairs += len(below)
    assert metrics.auc(y, score, fold) == pytest.approx(right / pairs, abs=EXACT)
    one = np.zeros(300, dtype=int)
    assert metrics.auc(y, score, one) == metrics.auc(y, score)
    assert np.isnan(metrics.auc([1, 0], [0.3, 0.4], [0, 1]))
    wins, chances = metrics.row_pairs(y, score, fold)
    assert (wins.sum(), chances.sum()) == (4 * right, 4 * pairs)  # twice, from both ends
    for row in rng.integers(0, 300, 20):
        sign = 1 if y[row] else -1
        others = sign * (score[row] - score[(y != y[row]) & (fold == fold[row])])
        assert wins[row] == 2 * (others > 0).sum() + (others == 0).sum()
        assert chances[row] == 2 * len(others)


def test_auc_ranks_infinite_scores() -> None:
    assert metrics.auc([1, 0, 1], [np.inf, -np.inf, 0.0]) == 1.0


@pytest.mark.slow
@settings(deadline=None)
@given(labelled(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_wins_of_a_row_are_its_pairs_within_its_group(
    rows: Arrays, groups: int, random: Any
) -> None:
    y, score = rows
    group = np.array([random.randrange(groups) for _ in y])
    order = np.lexsort((score, group))
    first = np.concatenate(([True], np.diff(group[order]) > 0))
    wins = np.empty(len(y), dtype=np.int64)
    wins[order] = metrics.row_wins(y[order], score[order], first)
    for row in range(len(y)):
        others = score[(group == group[row]) & (y != y[row])]
        ahead = score[row] > others if y[row] else score[row] < others
        assert wins[row] == 2 * ahead.sum() + (score[row] == others).sum()


# --- log-loss and Brier


def test_log_loss_equals_scikit_learn() -> None:
    y, logit = random_rows()
    assert metrics.log_loss(y, logit) == pytest.approx(sklearn_log_loss(y, expit(logit)), abs=EXACT)
    assert metrics.log_loss_from_prob(y, expit(logit)) == pytest.approx(
        metrics.log_loss(y, logit), abs=EXACT
    )


def test_log_loss_from_log_odds_is_not_clipped() -> None:
    assert metrics.log_loss([0], [40.0]) == 40.0
    assert metrics.log_loss([1], [-800.0]) == 800.0
    assert metrics.log_loss([1], [np.inf]) == 0.0
    assert metrics.log_loss([0], [np.inf]) == np.inf


@pytest.mark.parametrize(
    ("clip", "loss"),
    [(np.finfo(np.float64).eps, 18.02), (np.finfo(np.float32).eps, 7.97), (1e-15, 17.27)],
)
def test_the_clip_decides_the_cost_of_certainty(clip: float, loss: float) -> None:
    found = metrics.log_loss_from_prob([1, 0], [0.0, 0.0], clip=float(clip))
    assert found == pytest.approx(loss, abs=0.005)


def test_log_odds_are_never_taken_as_probabilities() -> None:
    logit = np.array([0.2, 0.4, 0.9])
    np.testing.assert_allclose(expit(logit), [0.5498, 0.5987, 0.7109], atol=5e-5)
    y = np.array([1, 0, 1])
    assert metrics.log_loss(y, logit) == pytest.approx(
        metrics.log_loss_from_prob(y, expit(logit)), abs=EXACT
    )
    assert metrics.log_loss(y, logit) != pytest.approx(metrics.log_loss_from_prob(y, logit))


def test_brier_equals_scikit_learn() -> None:
    y, logit = random_rows()
    prob = expit(logit)
    assert metrics.brier(y, prob) == pytest.approx(brier_score_loss(y, prob), abs=EXACT)
    assert metrics.brier([1, 0], [1.0, 0.0]) == 0.0
    assert np.isnan(metrics.brier([], []))


@pytest.mark.parametrize("perturb", [-0.3, -0.1, 0.1, 0.3])
def test_truth_beats_a_perturbation_under_proper_scores(perturb: float) -> None:
    y, logit = random_rows(200_000)
    assert metrics.log_loss(y, logit) < metrics.log_loss(y, logit + perturb)
    assert metrics.brier(y, expit(logit)) < metrics.brier(y, expit(logit + perturb))


# --- ECE


def brute_ece(y: np.ndarray[Any, Any], prob: np.ndarray[Any, Any], n_bins: int) -> float:
    total = 0.0
    for i in range(n_bins):
        low, high = i / n_bins, (i + 1) / n_bins
        last = i == n_bins - 1
        inside = (prob >= low) & ((prob <= high) if last else (prob < high))
        if inside.any():
            total += inside.mean() * abs(y[inside].mean() - prob[inside].mean())
    return total


@pytest.mark.slow
@settings(deadline=None)
@given(labelled(), st.integers(1, 25))
def test_ece_equals_its_definition(rows: Arrays, n_bins: int) -> None:
    y, prob = rows
    assert metrics.ece(y, prob, n_bins=n_bins) == pytest.approx(
        brute_ece(y, prob, n_bins), abs=EXACT
    )


@pytest.mark.parametrize("n_bins", range(1, 60))
def test_every_edge_opens_its_own_bin(n_bins: int) -> None:
    edges = metrics.bin_edges(n_bins)
    expected = np.minimum(np.arange(n_bins + 1), n_bins - 1)
    np.testing.assert_array_equal(metrics.bin_index(edges, edges), expected)
    below = np.nextafter(edges[1:], 0)
    np.testing.assert_array_equal(metrics.bin_index(below, edges), np.arange(n_bins))


@pytest.mark.parametrize(
    ("prob", "y", "n_bins", "expected"),
    [
        pytest.param([0.95, 1.0], [1, 0], 15, 0.475, id="p-of-1"),
        pytest.param([1, 1, 1], [0, 0, 0], 15, 1.0, id="all-p-of-1"),
        pytest.param([0.0], [1], 15, 1.0, id="p-of-0"),
        pytest.param([1, 1, 1, 1, 0], [0, 0, 1, 1, 1], 2, 0.6, id="both-edges"),
        pytest.param([0.25, 0.25, 0.75, 0.75], [0, 0, 1, 1], 2, 0.25, id="two-bins"),
        pytest.param([0.01, 0.001, 0.005], [1, 1, 1], 15, 0.99466667, id="binary-not-top-label"),
        pytest.param([0.75, 0.25], [1, 0], 15, 0.25, id="by-hand"),
    ],
)
def test_ece_cases(prob: list[float], y: list[int], n_bins: int, expected: float) -> None:
    assert metrics.ece(y, prob, n_bins=n_bins) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("n_bins", "expected"), [(10, 0.02), (15, 0.16), (20, 0.16)])
def test_the_number_of_bins_moves_ece(n_bins: int, expected: float) -> None:
    prob = np.repeat([0.62, 0.68], 50)
    y = np.concatenate([np.arange(50) < 40, np.arange(50) < 27])
    assert metrics.ece(y, prob, n_bins=n_bins) == pytest.approx(expected, abs=EXACT)


def test_a_calibrated_bin_has_no_error() -> None:
    y, prob = np.arange(100) < 96, np.full(100, 0.96)
    assert metrics.ece(y, prob, n_bins=20) == pytest.approx(0.0, abs=EXACT)


@pytest.mark.parametrize(("strategy", "bins"), [("uniform", "width"), ("quantile", "mass")])
def test_reliability_equals_scikit_learn(strategy: str, bins: metrics.Bins) -> None:
    y, logit = random_rows()
    prob = expit(logit)
    rate, mean = calibration_curve(y, prob, n_bins=10, strategy=strategy)
    table = metrics.reliability(y, prob, n_bins=10, bins=bins)
    # scikit-learn closes the upper edge, which moves one row of each inner quantile at most
    tolerance = EXACT if bins == "width" else 0.01
    np.testing.assert_allclose(table.rate, rate, atol=tolerance)
    np.testing.assert_allclose(table.mean_prediction, mean, atol=tolerance)
    assert table.n.sum() == len(y)
    assert table.n_accepted.sum() == y.sum()
    gap = table.n * np.abs(table.rate - table.mean_prediction)
    ece = metrics.ece(y, prob, n_bins=10, bins=bins)
    assert gap.sum() / len(y) == pytest.approx(ece, abs=EXACT)


def test_equal_predictions_share_a_bin_of_mass() -> None:
    table = metrics.reliability([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], n_bins=3, bins="mass")
    assert table.n.tolist() == [0, 0, 4]
    assert np.isnan(table.rate[:2]).all()


def test_ece_null_is_what_calibrated_predictions_show() -> None:
    # the band of the contract, for predictions spread as the published ones (mean 0.72,
    # log-loss 0.43)
    rng = np.random.default_rng(0)
    prob = expit(rng.normal(1.8, 2.3, 60_000))
    assert metrics.ece_null(prob[:9_600]).expected == pytest.approx(0.010, abs=0.0005)
    assert metrics.ece_null(prob).expected == pytest.approx(0.004, abs=0.0005)
    few = prob[:2_000]
    shown = [metrics.ece(rng.random(2_000) < few, few) for _ in range(2_000)]
    expected, high = metrics.ece_null(few)
    assert np.mean(shown) == pytest.approx(expected, rel=0.02)
    assert np.mean(np.array(shown) > high) == pytest.approx(0.05, abs=0.015)


def test_ece_null_of_one_bin_is_the_half_normal() -> None:
    expected, high = metrics.ece_null(np.full(10_000, 0.5))
    assert expected == pytest.approx(np.sqrt(2 / np.pi) * 0.005, abs=EXACT)
    assert high == pytest.approx(1.96 * 0.005, rel=1e-3)


def test_ece_null_of_a_rare_event_is_its_mean_deviation() -> None:
    # one row in its bin: E|y - p| = 2 p (1 - p)
    assert metrics.ece_null([0.01]).expected == pytest.approx(2 * 0.01 * 0.99, abs=EXACT)
    assert metrics.ece_null([0.0, 1.0]) == (0.0, 0.0)


def test_debiasing_takes_bias_away_and_leaves_a_clear_error() -> None:
    rng = np.random.default_rng(0)
    prob = expit(rng.normal(1.2, 1.6, 2_000))
    plain, debiased = [], []
    for _ in range(300):
        y = rng.random(len(prob)) < prob
        plain.append(metrics.ece(y, prob))
        debiased.append(metrics.ece_debiased(y, prob))
    assert np.mean(debiased) < 0.7 * np.mean(plain)
    y = rng.random(100_000) < 0.7
    off = np.full(100_000, 0.5)
    assert metrics.ece_debiased(y, off) == pytest.approx(metrics.ece(y, off), abs=EXACT)


def test_the_centre_of_a_bin_shows_error_of_calibrated_data() -> None:
    y, prob = np.arange(100) < 96, np.full(100, 0.96)
    assert metrics.ece(y, prob, n_bins=20, value="centre") == pytest.approx(0.015, abs=EXACT)


# --- smooth ECE


def direct_smooth_ece(y: np.ndarray[Any, Any], prob: np.ndarray[Any, Any], width: float) -> float:
    """Sum the reflected Gaussians of every row: the definition, on 2,001 points."""
    t = np.linspace(0, 1, 2001)
    images = np.concatenate([2.0 * m + sign * prob for m in range(-3, 4) for sign in (1, -1)])
    residual = np.tile((y - prob) / len(y), 14)
    kernel = np.exp(-((t[:, None] - images) ** 2) / (2 * width**2)) / (width * np.sqrt(2 * np.pi))
    return float(np.trapezoid(np.abs(kernel @ residual), t))


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.02, 0.1, 0.5])
def test_smooth_ece_equals_its_definition(width: float) -> None:
    y, logit = random_rows(500)
    prob = np.concatenate([expit(logit[:-2] - 0.5), [0.0, 1.0]])
    found = metrics.smooth_ece(y, prob, bandwidth=width)
    assert found == pytest.approx(direct_smooth_ece(y, prob, width), abs=1e-6)


@pytest.mark.parametrize(
    ("seed", "n", "shift", "scale", "relplot", "at_tenth"),
    [
        (0, 2000, 0.0, 1.0, 0.025150503580641418, 0.017215259214652855),
        (1, 2000, 0.5, 1.0, 0.059105682792951024, 0.058231064485614215),
        (2, 5000, 0.0, 0.5, 0.09286364933051659, 0.09148400396460568),
        (3, 300, -1.0, 1.0, 0.17411368795661397, 0.1738564266055166),
    ],
)
def test_smooth_ece_agrees_with_relplot(
    seed: int, n: int, shift: float, scale: float, relplot: float, at_tenth: float
) -> None:
    # relplot 1.0.3, smECE(prob, y) and smECE_sigma(prob, y, 0.1) on the rows below
    rng = np.random.default_rng(seed)
    logit = rng.normal(0.5, 2.0, n)
    y = rng.random(n) < 1 / (1 + np.exp(-logit))
    prob = 1 / (1 + np.exp(-(scale * logit + shift)))
    # it evaluates 200 points and stops at a bandwidth step of 0.001
    assert metrics.smooth_ece(y, prob) == pytest.approx(relplot, abs=1e-3)
    assert metrics.smooth_ece(y, prob, bandwidth=0.1) == pytest.approx(at_tenth, abs=1e-3)


def test_smooth_ece_is_the_error_at_its_own_bandwidth() -> None:
    y, logit = random_rows(2000)
    prob = expit(logit + 0.3)
    error = metrics.smooth_ece(y, prob)
    assert metrics.smooth_ece(y, prob, bandwidth=error) == pytest.approx(error, abs=2e-6)
    # all residuals of one sign: smoothing moves mass but loses none
    assert metrics.smooth_ece([1, 1], [0.2, 0.6]) == pytest.approx(0.6, abs=1e-9)


# --- Brier decomposition


@pytest.mark.slow
@settings(deadline=None)
@given(labelled(), st.integers(1, 20))
def test_the_parts_of_brier_sum_to_it(rows: Arrays, n_bins: int) -> None:
    y, prob = rows
    parts = metrics.brier_decomposition(y, prob, n_bins=n_bins)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within
    assert total == pytest.approx(metrics.brier(y, prob), abs=EXACT)
    assert parts.reliability >= 0
    assert parts.resolution >= 0


def test_the_parts_of_brier_by_hand() -> None:
    # bin 0: rate 1/2, mean 1/4; bin 1: rate 1, mean 3/4; overall rate 3/4
    parts = metrics.brier_decomposition([0, 1, 1, 1], [0.25, 0.25, 0.75, 0.75], n_bins=2)
    assert parts == pytest.approx((0.0625, 0.0625, 0.1875, 0.0), abs=EXACT)


# --- edges of the input


@pytest.mark.parametrize(
    "metric", [metrics.ece, metrics.ece_debiased, metrics.log_loss, metrics.smooth_ece]
)
def test_nothing_has_no_metric(metric: Any) -> None:
    assert np.isnan(metric([], []))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.auc([1, 0], [1.0]), "one shape"),
        (lambda: metrics.auc([1, 2], [1.0, 2.0]), "only 0 and 1"),
        (lambda: metrics.auc([1, 0], [1.0, np.nan]), "1 NaN of 2"),
        (lambda: metrics.log_loss([1, np.nan], [1.0, 2.0]), "only 0 and 1"),
        (lambda: metrics.log_loss([[1, 0]], [[1.0, 2.0]]), "one shape"),
        (lambda: metrics.brier([1, 0], [0.5, 1.5]), r"in \[0, 1\]"),
        (lambda: metrics.ece([1, 0], [-0.1, 0.5]), r"in \[0, 1\]"),
        (lambda: metrics.ece([1], [0.5], n_bins=0), "n_bins"),
        (lambda: metrics.ece([1], [0.5], bins="centre"), "unknown bins 'centre'"),  # type: ignore[arg-type]
        (lambda: metrics.ece([1], [0.5], value="middle"), "unknown value 'middle'"),  # type: ignore[arg-type]
        (lambda: metrics.smooth_ece([1], [0.5], bandwidth=0.0), "bandwidth must be positive"),
        (lambda: metrics.ece_null([1.2]), r"in \[0, 1\]"),
        (lambda: metrics.log_loss_from_prob([1], [1.2]), r"in \[0, 1\]"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_results_are_python_floats() -> None:
    y, prob = [1, 0], [0.9, 0.2]
    values = [f(y, prob) for f in (metrics.auc, metrics.log_loss, metrics.brier, metrics.ece)]
    values += [metrics.ece_debiased(y, prob), *metrics.ece_null(prob)]
    assert {type(value) for value in values} == {float}


def test_the_smooth_curve_is_a_reflected_kernel_average() -> None:
    rng = np.random.default_rng(0)
    prob = rng.beta(4, 2, 400)
    y = rng.random(400) < prob**2
    curve = metrics.smooth_curve(y, prob, bandwidth=0.05)
    # brute force: every row and its images behind 0 and 1, the kernel cut at four bandwidths
    images = np.concatenate([prob, -prob, 2 - prob])
    gap = (curve.prob[:, None] - images[None, :]) / 0.05
    weight = np.where(np.abs(gap) <= 4, np.exp(-(gap**2) / 2), 0.0)
    wanted = (weight * np.tile(y, 3)).sum(axis=1) / weight.sum(axis=1)
    near = weight.sum(axis=1) > 1
    np.testing.assert_allclose(curve.rate[near], wanted[near], atol=0.01)  # grid of 256
    assert curve.density.mean() == pytest.approx(1, abs=1e-9)


def test_the_smooth_curve_of_a_calibrated_predictor_lies_on_the_diagonal() -> None:
    rng = np.random.default_rng(1)
    prob = rng.uniform(0.1, 0.9, 200_000)
    curve = metrics.smooth_curve(rng.random(200_000) < prob, prob, bandwidth=0.02)
    inside = (curve.prob > 0.2) & (curve.prob < 0.8)
    np.testing.assert_allclose(curve.rate[inside], curve.prob[inside], atol=0.02)
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        metrics.smooth_curve([True], [0.5], bandwidth=0.0)


def test_the_null_of_nearly_certain_predictions_does_not_underflow() -> None:
    n = np.array([[3, 4]])
    null, high = metrics.ece_null_of_bins(n, np.array([[1e-220, 1e-230]]))
    assert 0 < null[0] < high[0] < 1e-100
    assert metrics.ece_null_of_bins(n, np.zeros((1, 2)))[1] == 0
