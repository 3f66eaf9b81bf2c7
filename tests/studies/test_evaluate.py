"""Evaluation: which rows count, cross-fitting, exactness of the metrics, errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from scipy.special import expit
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from draftlab import metrics
from draftlab.errors import InputError
from draftlab.metrics.intervals import auc_interval, mean_interval
from draftlab.schema import Excluded
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.synth import synth_log
from tests.logs import DATASETS, proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXACT = 1e-12  # sums of some thousand float64 numbers in another order


@pytest.fixture(scope="module")
def run(synthetic_run: Path) -> Path:
    """Return a run of about 10,000 labelled rows in three datasets."""
    return synthetic_run


@pytest.fixture(scope="module")
def crossed(synthetic_evaluation: Evaluation) -> Evaluation:
    return synthetic_evaluation


@pytest.fixture(scope="module")
def in_sample(run: Path) -> Evaluation:
    return evaluate(run, in_sample=True, keep_predictions=True)


def edit(run: Path, table: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    """Rewrite a table of a run that has one part."""
    (part,) = (run / table).glob("part-*.parquet")
    change(pl.read_parquet(part)).write_parquet(part)
    return run


def fresh(folder: Path, **options: Any) -> Path:
    defaults: dict[str, Any] = {"num_requests": 40, "datasets": DATASETS}
    return synth_log(folder, **(defaults | options))


def only(
    result: Evaluation, predictor: str, scope: str = "overall", **where: Any
) -> dict[str, Any]:
    return result.metrics.filter(predictor=predictor, scope=scope, **where).row(0, named=True)


def labels(rows: list[tuple[float, bool]], **columns: Any) -> list[dict[str, Any]]:
    """Return proposals of one position each, one request a row."""
    return [
        proposal(step, [accepted], request=step, logit_qmax=[feature], **columns)
        for step, (feature, accepted) in enumerate(rows)
    ]


# --- which rows count


@pytest.mark.parametrize(
    ("accepted", "admitted", "survival"),
    [
        pytest.param([True, False, None, None], 4, [1.0, 0.0, 0.0, 0.0], id="behind-a-rejection"),
        pytest.param([True, True, None, None], 2, [1.0, 1.0, None, None], id="trimmed"),
        pytest.param(
            [True, False, None, None], 2, [1.0, 0.0, None, None], id="rejected-and-trimmed"
        ),
    ],
)
def test_unobserved_positions_are_not_rows(
    tmp_path: Path, accepted: list[bool | None], admitted: int, survival: list[float | None]
) -> None:
    sent = np.arange(4) < admitted
    verify = np.ma.array(np.ones(4, dtype=np.int64), mask=~sent)
    case = proposal(0, accepted, admitted=sent, verify_step=verify)
    # a second prompt with both classes at both positions, in another dataset
    labels: list[list[bool | None]] = [[True, True], [True, False], [False, None]]
    others = [proposal(1 + i, other, request=1) for i, other in enumerate(labels)]
    log = write_log(tmp_path, [case, *others], num_speculative_tokens=4)
    result = evaluate(log, in_sample=True, predictors=["constant"])
    observed = [label for label in accepted if label is not None]
    even = only(result, "constant", "dataset", dataset="even")
    assert (even["n"], even["n_accepted"]) == (len(observed), sum(observed))
    rates = result.acceptance.filter(dataset="even").sort("position")
    assert rates["n_observed"].to_list() == [1, 1, 0, 0]
    assert rates["n_admitted"].to_list() == [int(s) for s in sent]
    assert rates["survival_rate"].fill_nan(None).to_list() == survival
    assert rates["hidden_share"].to_list() == [float(not s) for s in sent]


def test_excluded_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    kept = [(2.0, True)] * 100 + [(1.0, False)] * 10
    log = write_log(tmp_path, labels(kept), run="a", num_speculative_tokens=1)
    flagged = labels(
        [(2.0, False)] * 100, excluded=np.array([Excluded.TARGET_ONLY_TRANSFORM], dtype=np.uint16)
    )
    other = write_log(tmp_path, flagged, run="b", num_speculative_tokens=1)
    result = evaluate([log, other], in_sample=True)
    row = only(result, "constant")
    assert (row["n"], row["n_accepted"], row["n_excluded"]) == (110, 100, 100)
    by_reason = {r["reason"]: r["labelled"] for r in result.exclusions.iter_rows(named=True)}
    assert by_reason == {"target_only_transform": 100, "total": 100}
    assert only(result, "constant")["mean_prediction"] == pytest.approx(100 / 110, abs=1e-6)


@pytest.mark.slow
def test_a_row_with_two_reasons_counts_under_each_and_once_in_total(tmp_path: Path) -> None:
    def flag(rows: pl.DataFrame) -> pl.DataFrame:
        index, both = pl.int_range(pl.len()), int(Excluded.WARMUP | Excluded.GRAMMAR)
        flags = pl.when(index < 10).then(both).when(index < 15).then(int(Excluded.GRAMMAR))
        return rows.with_columns(excluded=flags.otherwise(0).cast(pl.UInt16))

    run = edit(fresh(tmp_path), "drafts", flag)
    counts = {r["reason"]: r["rows"] for r in evaluate(run).exclusions.iter_rows(named=True)}
    unobserved = pl.read_parquet(run / "drafts" / "*.parquet").filter(excluded=0)["accepted"]
    assert (counts["warmup"], counts["grammar"]) == (10, 15)
    assert counts["total"] == 15 + unobserved.null_count()


@pytest.mark.slow
def test_rows_without_a_request_are_counted(tmp_path: Path) -> None:
    run = edit(fresh(tmp_path), "requests", lambda rows: rows.filter(pl.col("request") > 0))
    result = evaluate(run)
    drafts = pl.read_parquet(run / "drafts" / "*.parquet").filter(request=0)
    lost = len(drafts.drop_nulls("accepted"))
    assert result.exclusions.filter(reason="no_request")["labelled"].item() == lost
    assert only(result, "constant")["n_excluded"] == lost


def test_acceptance_rates_by_hand(tmp_path: Path) -> None:
    accepted: list[list[bool | None]] = [[True, True], [True, False], [False, None], [True, True]]
    log = write_log(tmp_path, [proposal(i, labels) for i, labels in enumerate(accepted)])
    table = evaluate(log, in_sample=True).acceptance.filter(pl.col("dataset").is_null())
    assert table["n_observed"].to_list() == [4, 3]
    assert table["n_accepted"].to_list() == [3, 2]
    assert table["conditional_rate"].to_list() == [3 / 4, 2 / 3]
    assert table["survival_rate"].to_list() == [3 / 4, 2 / 4]
    assert table["mean_entropy"].to_list() == [2.0, 0.5]


# --- the numbers


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["overall", "without_first", "position", "dataset"])
def test_in_sample_metrics_equal_scikit_learn(in_sample: Evaluation, scope: str) -> None:
    result = in_sample
    assert result.predictions is not None
    for row in result.metrics.filter(scope=scope).iter_rows(named=True):
        rows = result.predictions
        if scope == "without_first":
            rows = rows.filter(pl.col("position") > 0)
        if row["position"] is not None:
            rows = rows.filter(position=row["position"])
        if row["dataset"] is not None:
            rows = rows.filter(dataset=row["dataset"])
        y, logit = rows["accepted"].to_numpy(), rows[row["predictor"]].to_numpy()
        prob = expit(logit)
        assert row["n"] == len(y)
        assert row["n_prompts"] == rows["group"].n_unique()
        assert row["auc"] == pytest.approx(roc_auc_score(y, logit), abs=EXACT)
        assert row["log_loss"] == pytest.approx(log_loss(y, prob), abs=EXACT)
        assert row["brier"] == pytest.approx(brier_score_loss(y, prob), abs=EXACT)
        assert row["ece"] == pytest.approx(metrics.ece(y, prob), abs=EXACT)
        assert row["ece_debiased"] == pytest.approx(metrics.ece_debiased(y, prob), abs=EXACT)
        band = (row["ece_null"], row["ece_null_high"])
        assert band == pytest.approx(metrics.ece_null(prob), abs=EXACT)
        assert row["mean_prediction"] == pytest.approx(prob.mean(), abs=EXACT)


def test_cross_fitted_auc_is_the_weighted_mean_within_folds(crossed: Evaluation) -> None:
    assert crossed.predictions is not None
    for name in ("logit_qmax", "entropy", "per_position", "accept_prob"):
        total = weight = 0.0
        for (_,), fold in crossed.predictions.group_by("fold"):
            y = fold["accepted"].to_numpy()
            pairs = y.sum() * (len(y) - y.sum())
            total += pairs * roc_auc_score(y, fold[name].to_numpy())
            weight += pairs
        row = only(crossed, name)
        assert row["auc"] == pytest.approx(total / weight, abs=EXACT)
        y, logit = (crossed.predictions[column].to_numpy() for column in ("accepted", name))
        assert row["log_loss"] == pytest.approx(metrics.log_loss(y, logit), abs=EXACT)


def test_intervals_are_on_by_default_and_hold_their_estimate(crossed: Evaluation) -> None:
    table = crossed.metrics.filter(pl.col("scope") != "dataset_position")
    for name in ("auc", "log_loss", "brier", "mean_prediction"):
        low, value, high = (table[c].to_numpy() for c in (f"{name}_low", name, f"{name}_high"))
        assert (low <= value).all()
        assert (value <= high).all()
    row = only(crossed, "logit_qmax")
    assert 0.01 < row["auc_high"] - row["auc_low"] < 0.05


def test_in_sample_intervals_are_those_of_the_plain_functions(in_sample: Evaluation) -> None:
    result = in_sample
    assert result.predictions is not None
    deep = result.predictions.filter(pl.col("position") > 0)
    y, logit, group = (deep[c].to_numpy() for c in ("accepted", "entropy", "group"))
    row = only(result, "entropy", "without_first")
    for name, interval in (
        ("auc", auc_interval(y, logit, group)),
        ("brier", mean_interval((expit(logit) - y) ** 2, group)),
    ):
        found = (row[name], row[f"{name}_low"], row[f"{name}_high"])
        assert found == pytest.approx(interval, abs=EXACT)


def test_differences_are_paired_and_agree_with_the_metrics(crossed: Evaluation) -> None:
    table = crossed.differences
    assert table["predictor_a"].unique().to_list() == ["logit_qmax"]
    assert table["predictor_b"].n_unique() == crossed.metrics["predictor"].n_unique() - 1
    for row in table.filter(pl.col("scope") == "overall").rows(named=True):
        a, b = (only(crossed, row[p])[row["metric"]] for p in ("predictor_a", "predictor_b"))
        assert row["difference"] == a - b
        assert (row["distinguishable"] is None) == (row["metric"] == "ece")
    # a monotone function ranks alike within a position: no difference, and none is claimed
    alike = table.filter(scope="position", predictor_b="qmax", metric="auc")
    assert alike.select("difference", "low", "high").unique().row(0) == (0.0, 0.0, 0.0)
    assert not alike["distinguishable"].any()
    clear = table.filter(scope="overall", predictor_b="overlap", metric="log_loss").row(
        0, named=True
    )
    unpaired = only(crossed, "logit_qmax")
    assert clear["high"] - clear["low"] < unpaired["log_loss_high"] - unpaired["log_loss_low"]


@pytest.mark.slow
def test_any_two_predictors_can_be_compared(run: Path) -> None:
    names = ["entropy", "qmax", "constant"]
    table = evaluate(run, predictors=names, compare="all").differences
    pairs = table.select("predictor_a", "predictor_b").unique(maintain_order=True).rows()
    assert pairs == [("entropy", "qmax"), ("entropy", "constant"), ("qmax", "constant")]
    first = evaluate(run, predictors=names).differences["predictor_a"].unique().to_list()
    assert first == ["entropy"]
    with pytest.raises(InputError, match="unknown compare 'some'; known: adopted, all"):
        evaluate(run, compare="some")  # type: ignore[arg-type]


def test_reliability_is_the_overall_ece(crossed: Evaluation) -> None:
    for (name,), table in crossed.reliability.group_by("predictor"):
        bins = table.filter(pl.col("n") > 0)
        n, gap = bins["n"].to_numpy(), (bins["rate"] - bins["mean_prediction"]).abs().to_numpy()
        assert n @ gap / n.sum() == pytest.approx(only(crossed, str(name))["ece"], abs=EXACT)
        assert len(table) == 15


def test_ece_by_convention_and_the_parts_of_brier(crossed: Evaluation) -> None:
    assert crossed.predictions is not None
    y, logit = (crossed.predictions[c].to_numpy() for c in ("accepted", "entropy"))
    prob = expit(logit)
    table = crossed.ece_conventions.filter(predictor="entropy")
    assert table["view"].unique().to_list() == ["conditional"]
    found = {(bins, n, value): ece
             for bins, n, value, ece in table["bins", "n_bins", "value", "ece"].rows()}  # fmt: skip
    assert found == {
        ("width", 10, "mean"): pytest.approx(metrics.ece(y, prob, n_bins=10), abs=EXACT),
        ("width", 15, "mean"): pytest.approx(metrics.ece(y, prob), abs=EXACT),
        ("width", 20, "mean"): pytest.approx(metrics.ece(y, prob, n_bins=20), abs=EXACT),
        ("width", 20, "centre"): pytest.approx(
            metrics.ece(y, prob, n_bins=20, value="centre"), abs=EXACT
        ),
        ("mass", 15, "mean"): pytest.approx(metrics.ece(y, prob, bins="mass"), abs=EXACT),
        ("smooth", None, "none"): pytest.approx(metrics.smooth_ece(y, prob), abs=1e-9),
    }
    row = only(crossed, "entropy")
    parts = metrics.brier_decomposition(y, prob)
    for name, part in parts._asdict().items():
        assert row[f"brier_{name}"] == pytest.approx(part, abs=EXACT)


def test_the_constant_floor_ranks_nothing(crossed: Evaluation) -> None:
    scores = crossed.metrics.filter(predictor="constant")["auc"].drop_nans()
    assert scores.unique().to_list() == [0.5]
    by_position = crossed.metrics.filter(predictor="per_position", scope="position")["auc"]
    assert by_position.unique().to_list() == [0.5]


@pytest.mark.slow
@pytest.mark.parametrize("in_sample", [True, False])
def test_monotone_features_agree_exactly_within_a_position(tmp_path: Path, in_sample: bool) -> None:
    def sharpen(rows: pl.DataFrame) -> pl.DataFrame:
        # the upper half so sure that w log(qmax) + b rounds to b, in the same order
        rank = pl.col("logit_qmax").rank() / pl.len()
        log_odds = pl.when(rank > 0.5).then(34 + 6 * rank).otherwise(pl.col("logit_qmax"))
        return rows.with_columns(logit_qmax=log_odds.cast(pl.Float32))

    result = evaluate(
        edit(fresh(tmp_path), "drafts", sharpen), in_sample=in_sample, keep_predictions=True
    )
    assert result.predictions is not None
    distinct = result.predictions.select(pl.col("log_qmax", "logit_qmax").n_unique())
    assert distinct["log_qmax"].item() < 0.8 * distinct["logit_qmax"].item()
    for scope in ("position", "dataset_position"):
        first, *others = (
            result.metrics.filter(predictor=name, scope=scope)["auc"].to_numpy()
            for name in ("log_qmax", "loglog_qmax", "logit_qmax", "qmax")
        )
        assert np.isfinite(first).any()
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.slow
def test_coefficients_recover_the_truth(tmp_path: Path) -> None:
    truth = [0.6, 1.0, 0.5, 0.0, -0.5]
    run = synth_log(
        tmp_path, num_requests=600, num_positions=4, slope=truth[0], intercepts=truth[1:]
    )
    result = evaluate(run, keep_predictions=True)
    fit = result.coefficients.filter(
        pl.col("fold").is_null() & pl.col("dataset").is_null(), predictor="logit_qmax"
    )
    assert fit["status"].unique().to_list() == ["converged"]
    assert result.predictions is not None
    position = result.predictions["position"].to_numpy()
    raw = result.predictions["qmax"].to_numpy()  # the clamped log-odds themselves
    design = np.column_stack([raw, position[:, None] == np.arange(4)])
    prob = expit(result.predictions["logit_qmax"].to_numpy())
    covariance = np.linalg.inv(design.T @ (design * (prob * (1 - prob))[:, None]))
    found = np.array([fit["slope"][0], *fit["intercept"]])
    z = (found - truth) / np.sqrt(np.diag(covariance))
    assert np.abs(z).max() < 4
    # overlap is the truth about the prefix: no function of the prefix scores better
    losses = {r["predictor"]: r["log_loss"]
              for r in result.metrics.filter(scope="overall").iter_rows(named=True)}  # fmt: skip
    prefix = ["log_qmax", "top2_margin", "entropy", "loglog_qmax", "qmax", "constant"]
    assert losses["overlap"] < min(losses[name] for name in prefix)
    assert losses["accept_prob"] < losses["overlap"] < losses["per_position"]
    assert losses["logit_qmax"] == pytest.approx(losses["overlap"], abs=2e-3)


def test_own_slopes_are_an_ablation(run: Path) -> None:
    shared, own = (
        evaluate(run, predictors=["logit_qmax"], slope_per_position=o) for o in (False, True)
    )
    whole = [
        result.coefficients.filter(pl.col("fold").is_null() & pl.col("dataset").is_null())
        for result in (shared, own)
    ]
    assert whole[0]["slope"].n_unique() == 1
    assert whole[1]["slope"].n_unique() == 5
    assert whole[1]["log_likelihood"][0] > whole[0]["log_likelihood"][0]


def test_datasets_are_also_fitted_alone(crossed: Evaluation) -> None:
    alone = crossed.coefficients.filter(
        pl.col("dataset").is_not_null(), predictor="logit_qmax", position=0
    )
    assert alone["dataset"].to_list() == ["easy", "hard", "plain"]
    easy, hard, _ = alone["intercept"].to_list()
    assert easy > hard + 0.5


@pytest.mark.slow
def test_it_is_deterministic(run: Path, crossed: Evaluation) -> None:
    again = evaluate(run, keep_predictions=True)
    for name in Evaluation.meanings():
        assert_frame_equal(getattr(again, name), getattr(crossed, name), check_exact=True)


@pytest.mark.slow
def test_clamped_rows_are_counted(tmp_path: Path) -> None:
    def saturate(rows: pl.DataFrame) -> pl.DataFrame:
        first = pl.int_range(pl.len()).over("position") < 7
        infinite = pl.when(first & (pl.col("position") == 0)).then(np.inf)
        return rows.with_columns(
            logit_qmax=infinite.otherwise(pl.col("logit_qmax")).cast(pl.Float32)
        )

    result = evaluate(edit(fresh(tmp_path), "drafts", saturate))
    for name, count in (("logit_qmax", 7), ("log_qmax", 7), ("qmax", 7), ("entropy", 0)):
        assert only(result, name)["n_clamped"] == count
        assert only(result, name, "without_first")["n_clamped"] == 0
        assert only(result, name, "position", position=0)["n_clamped"] == count


# --- folds


def test_a_prompt_is_never_in_two_folds(crossed: Evaluation) -> None:
    assert crossed.predictions is not None
    folds = crossed.predictions.group_by("group").agg(pl.col("fold").n_unique())
    assert folds["fold"].unique().to_list() == [1]
    by_dataset = crossed.predictions.group_by("dataset", "fold").agg(pl.col("group").n_unique())
    assert by_dataset["group"].is_between(15, 17).all()  # 80 prompts of each dataset over 5 folds
    sizes = crossed.predictions["fold"].value_counts()["count"]
    assert sizes.max() < 1.05 * sizes.min()  # type: ignore[operator]


@pytest.mark.slow
def test_two_runs_of_one_prompt_share_its_fold(tmp_path: Path) -> None:
    for seed in (1, 2):
        fresh(tmp_path, seed=seed)
    result = evaluate(tmp_path, keep_predictions=True)
    assert result.predictions is not None
    folds = result.predictions.group_by("group").agg(pl.col("fold").n_unique())
    assert folds["fold"].unique().to_list() == [1]
    assert only(result, "constant")["n_prompts"] == 80  # (run, group)


@pytest.mark.slow
def test_a_position_in_one_fold_only_is_left_out_loudly(tmp_path: Path) -> None:
    def cut(rows: pl.DataFrame) -> pl.DataFrame:
        deep = (pl.col("position") == 4) & (pl.col("request") != 3)
        return rows.with_columns(accepted=pl.when(~deep).then(pl.col("accepted")))

    def both(rows: pl.DataFrame) -> pl.DataFrame:
        lone = (pl.col("position") == 4) & (pl.col("request") == 3)
        return rows.with_columns(accepted=pl.when(lone).then(True).otherwise(pl.col("accepted")))

    run = edit(edit(fresh(tmp_path), "drafts", cut), "drafts", both)
    result = evaluate(run)
    assert only(result, "constant", "position", position=4)["n"] == 0
    assert result.exclusions.filter(reason="untrained_position")["rows"].item() == 20
    assert any("positions [4] are left out" in note for note in map(str, result.notes))
    assert np.isnan(only(result, "constant", "position", position=4)["auc"])
    in_sample = evaluate(run, in_sample=True)
    assert only(in_sample, "constant", "position", position=4)["n"] == 20
    assert any("separable" in note for note in map(str, in_sample.notes))


def test_few_groups_make_few_folds(tmp_path: Path) -> None:
    result = evaluate(fresh(tmp_path, num_requests=3), keep_predictions=True)
    assert result.predictions is not None
    assert result.predictions["fold"].n_unique() == 3
    assert any(note.startswith("3 folds instead of 5") for note in map(str, result.notes))


# --- cells


@pytest.mark.slow
def test_runs_of_one_cell_are_pooled(tmp_path: Path) -> None:
    runs = [fresh(tmp_path, seed=seed) for seed in (1, 2)]
    alone = [only(evaluate(run), "logit_qmax")["n"] for run in runs]
    pooled = evaluate(runs, in_sample=True, keep_predictions=True)
    row = only(pooled, "logit_qmax")
    assert row["run"] == "synthetic-1+synthetic-2"
    assert row["n"] == sum(alone)
    assert pooled.predictions is not None
    y, logit = (pooled.predictions[c].to_numpy() for c in ("accepted", "logit_qmax"))
    assert row["auc"] == pytest.approx(roc_auc_score(y, logit), abs=EXACT)
    assert pooled.predictions["run"].unique().sort().to_list() == ["synthetic-1", "synthetic-2"]


def test_different_lengths_are_never_pooled(tmp_path: Path) -> None:
    fresh(tmp_path, run="short", num_positions=2)
    fresh(tmp_path, run="long", num_positions=4)
    result = evaluate(tmp_path, predictors=["constant"])
    overall = result.metrics.filter(scope="overall")
    assert overall["run"].to_list() == ["long", "short"]
    assert [cell["num_speculative_tokens"] for cell in result.settings["cells"]] == [4, 2]


@pytest.mark.slow
def test_copies_of_tensor_parallel_ranks_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        fresh(tmp_path, run=f"rank{rank}")
    with pytest.raises(InputError, match="runs rank0 and rank1 hold the same rows"):
        evaluate(tmp_path)
    fresh(tmp_path / "replicas", run="replica0", seed=0)
    fresh(tmp_path / "replicas", run="replica1", seed=1)
    assert only(evaluate(tmp_path / "replicas"), "constant")["n_prompts"] == 80


@pytest.mark.slow
def test_pooling_is_asked_for(tmp_path: Path) -> None:
    fresh(tmp_path, run="short", num_positions=2)
    fresh(tmp_path, run="greedy", num_positions=4, drafting="greedy", seed=1)
    apart = evaluate(tmp_path)
    assert apart.metrics["drafting"].unique().sort().to_list() == ["greedy", "probabilistic"]
    assert any(note.startswith("K differs (2, 4)") for note in map(str, apart.notes))
    pooled = evaluate(tmp_path, pool=True)
    row = only(pooled, "logit_q_sampled")
    assert (row["drafting"], row["lossless"]) == ("mixed", False)
    n = apart.metrics.filter(scope="overall", predictor="constant")["n"].sum()
    assert row["n"] == n
    assert any("pooled on request" in note for note in map(str, pooled.notes))
    (cell,) = pooled.settings["cells"]
    assert (cell["num_speculative_tokens"], cell["method"]) == (4, "synthetic")
    rates = pooled.acceptance.filter(pl.col("dataset").is_null())["n_observed"].to_list()
    assert sum(rates) == n


@pytest.mark.slow
def test_pooling_runs_that_differ_in_k_only_is_said(tmp_path: Path) -> None:
    fresh(tmp_path, run="short", num_positions=2)
    fresh(tmp_path, run="long", num_positions=4, seed=1)
    assert not any("pooled on request" in note for note in map(str, evaluate(tmp_path).notes))
    notes = [str(note) for note in evaluate(tmp_path, pool=True).notes]
    [said] = [note for note in notes if "pooled on request" in note]
    assert "num_speculative_tokens differ between the rows" in said


@pytest.mark.slow
def test_temperature_0_makes_a_greedy_cell(tmp_path: Path) -> None:
    cold = pl.col("request") % 2 == 0
    run = edit(
        fresh(tmp_path),
        "requests",
        lambda rows: rows.with_columns(
            temperature=pl.when(cold).then(0.0).otherwise(1.0).cast(pl.Float32)
        ),
    )
    result = evaluate(run)
    drafts = pl.read_parquet(run / "drafts" / "*.parquet").drop_nulls("accepted")
    for drafting, rest in (("greedy", 0), ("probabilistic", 1)):
        row = only(result, "logit_q_sampled", drafting=drafting)
        assert row["n"] == len(drafts.filter(pl.col("request") % 2 == rest))
        assert row["lossless"] is (drafting == "greedy")


@pytest.mark.slow
def test_a_greedy_run_is_a_greedy_cell(tmp_path: Path) -> None:
    result = evaluate(fresh(tmp_path, drafting="greedy"))
    assert result.metrics["drafting"].unique().to_list() == ["greedy"]
    assert result.metrics["lossless"].all()


def test_a_cell_that_cannot_be_graded_is_named(tmp_path: Path) -> None:
    run = edit(
        fresh(tmp_path),
        "requests",
        lambda rows: rows.with_columns(
            temperature=pl.when(pl.col("request") == 0).then(0.0).otherwise(1.0).cast(pl.Float32)
        ),
    )
    result = evaluate(run)
    assert result.metrics["drafting"].unique().to_list() == ["probabilistic"]
    assert any("not graded" in note and "(greedy)" in note for note in map(str, result.notes))


def test_a_trimmed_log_is_refused_or_marked(tmp_path: Path) -> None:
    rows = [proposal(i, [i % 3 > 0, None], request=i % 7, admitted=[True, False],
                     verify_step=np.ma.array([i, 0], mask=[False, True]))
            for i in range(30)]  # fmt: skip
    log = write_log(tmp_path, rows, adaptive_verification="estimator")
    with pytest.raises(InputError, match=r"adaptive verification \(estimator\) chose"):
        evaluate(log)
    # the predictor that trimmed may be refitted, with a word about the range that it saw
    alone = evaluate(log, predictors=["logit_qmax"])
    assert alone.metrics["trimmed"].all()
    assert any("0: -1.00 to -1.00; beyond that" in note for note in map(str, alone.notes))
    with pytest.raises(InputError, match="refit only logit_qmax"):
        evaluate(log, predictors=["logit_qmax", "entropy"])
    result = evaluate(log, allow_trimmed=True)
    assert result.metrics["trimmed"].all()
    assert result.acceptance.filter(pl.col("dataset").is_null())["hidden_share"].to_list() == [0, 1]
    assert any("adaptive verification" in note for note in map(str, result.notes))


@pytest.mark.parametrize(
    ("policy", "trimmer"),
    [("entropy", "entropy"), ("online-vllm", "logit_qmax"), ("vllm", "confidence")],
)
def test_a_trimmed_log_names_what_trimmed_it(tmp_path: Path, policy: str, trimmer: str) -> None:
    log = write_log(
        tmp_path, [proposal(i, [i % 3 > 0]) for i in range(9)], adaptive_verification=policy
    )
    with pytest.raises(InputError, match=f"refit only {trimmer} "):
        evaluate(log)


# --- optional columns


@pytest.mark.slow
def test_a_column_with_gaps_leaves_its_predictor_out(tmp_path: Path) -> None:
    run = edit(
        fresh(tmp_path),
        "drafts",
        lambda rows: rows.with_columns(
            overlap=pl.when(pl.col("step") > 0).then(pl.col("overlap")),
            entropy=pl.lit(None, dtype=pl.Float32),
        ),
    )
    result = evaluate(run)
    names = result.metrics["predictor"].unique().to_list()
    assert not {"overlap", "entropy", "confidence"} & set(names)
    assert result.metrics.filter(scope="overall")["n"].n_unique() == 1
    assert "entropy is left out: column entropy is not recorded" in map(str, result.notes)
    assert any(
        note.startswith("overlap is left out: column overlap is null on")
        for note in map(str, result.notes)
    )
    chosen = evaluate(run, predictors=["overlap", "logit_qmax"])
    graded = only(chosen, "overlap")["n"]
    assert graded < only(result, "logit_qmax")["n"]
    assert only(chosen, "logit_qmax")["n"] == graded
    missing = chosen.exclusions.filter(reason="feature_null")["rows"].item()
    assert missing == only(result, "logit_qmax")["n"] - graded
    assert only(chosen, "overlap")["n_excluded"] == missing


@pytest.mark.slow
def test_the_trained_head_is_graded_as_it_is(tmp_path: Path) -> None:
    run = edit(
        fresh(tmp_path),
        "drafts",
        lambda rows: rows.with_columns(confidence=pl.col("logit_qmax") * 0.5),
    )
    result = evaluate(run, keep_predictions=True)
    assert only(result, "confidence")["fitted"] is False
    assert result.predictions is not None
    np.testing.assert_array_equal(
        result.predictions["confidence"].to_numpy(), result.predictions["qmax"].to_numpy() * 0.5
    )
    assert "confidence" not in result.coefficients["predictor"].to_list()


# --- writing


@pytest.mark.slow
def test_what_is_undefined_is_null_in_strict_json(tmp_path: Path) -> None:
    run = fresh(tmp_path / "log", num_positions=7)
    edit(run, "drafts", lambda rows: rows.filter(pl.col("position") < 5))
    result = evaluate(run, out=tmp_path, keep_predictions=True)
    folder = tmp_path / "evaluate"

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads((folder / "result.json").read_text(), parse_constant=refuse)
    content = json.loads(json.dumps(result.to_dict()), parse_constant=refuse)
    deep = [row for row in content["metrics"]
            if row["scope"] == "position" and row["position"] in (5, 6)]  # fmt: skip
    assert {row["n"] for row in deep} == {0}
    assert {row[name] for row in deep for name in ("auc", "log_loss", "ece", "brier")} == {None}
    assert content["provenance"]["fingerprint"]
    for name in Evaluation.meanings():
        stored = pl.read_parquet(folder / f"{name}.parquet")
        assert_frame_equal(stored, getattr(result, name), check_exact=True)
    assert not list(folder.glob("*.tmp"))


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predictors": ["qmaxx"]}, "unknown predictor 'qmaxx'; known: log_qmax, top2_margin"),
        ({"predictors": []}, "no predictor named"),
        ({"predictors": ["confidence"]}, "0 of them with confidence"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"n_bins": 0}, "n_bins must be at least 1"),
    ],
)
def test_bad_options_are_refused(run: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(run, **options)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        pytest.param(
            "drafts",
            lambda rows: rows.with_columns(accepted=pl.lit(None, dtype=pl.Boolean)),
            "no row to grade: 4000 eligible proposed rows, 0 labelled rows",
            id="no-label",
        ),
        pytest.param(
            "drafts",
            lambda rows: rows.with_columns(accepted=pl.lit(value=True)),
            "one class only: 4000 accepted, 0 rejected",
            id="one-class",
        ),
        pytest.param(
            "requests",
            lambda rows: rows.with_columns(group=pl.lit("same")),
            "at least 2 prompts.*--in-sample",
            id="one-group",
        ),
        pytest.param(
            "drafts",
            lambda rows: rows.with_columns(
                entropy=pl.when(pl.col("step") == 0).then(np.nan).otherwise(pl.col("entropy"))
                .cast(pl.Float32)
            ),
            "column entropy of drafts holds 80 NaN",
            id="nan",
        ),
        pytest.param(
            "drafts",
            lambda rows: rows.with_columns(position=(pl.col("position") + 1).cast(pl.Int16)),
            "position 5, but run.json says num_speculative_tokens 5",
            id="position",
        ),
        pytest.param(
            "requests",
            lambda rows: pl.concat([rows, rows.head(1)]),
            "request 0 has several rows",
            id="request-twice",
        ),
    ],
)  # fmt: skip
def test_bad_logs_are_refused(
    tmp_path: Path, table: str, change: Callable[[pl.DataFrame], pl.DataFrame], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(edit(fresh(tmp_path), table, change))


def test_one_group_can_be_graded_in_sample(tmp_path: Path) -> None:
    run = edit(fresh(tmp_path), "requests", lambda r: r.with_columns(group=pl.lit("same")))
    assert only(evaluate(run, in_sample=True), "constant")["n_prompts"] == 1
