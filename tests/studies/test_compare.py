"""Two logs side by side: what differs is said, differences pair by prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.reporting.markdown import render_markdown
from draftlab.reporting.page import render_html
from draftlab.reporting.sections.compare import build_comparison
from draftlab.studies.compare import compare
from draftlab.studies.evaluate import evaluate
from draftlab.studies.inspect import inspect
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

from draftlab.studies.compare import Comparison


@pytest.fixture(scope="module")
def itself(small_run: Path) -> Comparison:
    return compare(small_run, small_run)


def make(folder: Path, rates: list[float], *, K: int = 2, seed: int = 0, **metadata: Any) -> Path:
    """Write a run in which prompt i is accepted with rates[i] at each of K positions."""
    rng = np.random.default_rng(seed)
    proposals = []
    for step in range(20 * len(rates)):
        rate = rates[step % len(rates)]
        labels: list[bool | None] = [None] * K
        for k in range(K):
            labels[k] = bool(rng.random() < rate)
            if not labels[k]:
                break
        feature = rng.normal(size=K)
        proposals.append(proposal(step, labels, request=step % len(rates), logit_qmax=feature))
    return write_log(folder, proposals, num_speculative_tokens=K, **metadata)


def test_a_log_against_itself_differs_in_nothing(itself: Comparison) -> None:
    assert not itself.setup["differs"].any()
    for table in (itself.predictors, itself.acceptance):
        known = table.filter(pl.col("difference").is_finite())
        assert known["difference"].abs().max() == 0
        assert known["high"].abs().max() == 0
        assert known["paired"].all()


@pytest.mark.slow
def test_numbers_are_those_of_the_evaluation(small_run: Path, itself: Comparison) -> None:
    wanted = evaluate(small_run).metrics.filter(scope="overall")
    for metric in ("auc", "log_loss", "brier", "mean_prediction"):
        own = itself.predictors.filter(metric=metric)
        other = wanted.filter(pl.col("predictor").is_in(own["predictor"].implode()))
        np.testing.assert_allclose(own["a"], other[metric], atol=1e-9)


@pytest.mark.slow
def test_the_paired_interval_is_that_of_differences_by_prompt(tmp_path: Path) -> None:
    """Acceptance length: a ratio of sums a side, so brute force over prompts is short."""
    a = make(tmp_path / "a", [0.3, 0.5, 0.7, 0.9] * 3, seed=1)
    b = make(tmp_path / "b", [0.4, 0.5, 0.6, 0.8] * 3, seed=2)
    row = compare(a, b).acceptance.filter(
        pl.col("dataset").is_null(), measure="acceptance_length"
    ).row(0, named=True)  # fmt: skip
    influences, means = [], []
    for path in (a, b):
        log = open_log(path)
        labels = log.drafts.filter(pl.col("accepted").is_not_null()).collect()
        per = labels.group_by("request", "step").agg(pl.col("accepted").sum() + 1)
        by_prompt = per.group_by("request").agg(
            pl.col("accepted").sum().alias("total"), pl.len().alias("n")
        ).sort("request")  # fmt: skip
        total, n = by_prompt["total"].to_numpy(), by_prompt["n"].to_numpy()
        mean = total.sum() / n.sum()
        means.append(mean)
        influences.append((total - mean * n) / n.sum())
    gap = influences[0] - influences[1]
    G = len(gap)
    from scipy.stats import t

    half = t.ppf(0.975, G - 1) * np.sqrt(G / (G - 1) * (gap**2).sum())
    assert row["difference"] == pytest.approx(means[0] - means[1], abs=1e-12)
    assert row["high"] - row["difference"] == pytest.approx(half, rel=1e-9)
    assert row["n_prompts"] == G
    assert row["paired"]


@pytest.mark.slow
def test_a_rate_is_never_ranked_across_k(tmp_path: Path) -> None:
    """At the same acceptance, the rate falls as K rises."""
    a = make(tmp_path / "a", [0.6] * 8, K=4)
    b = make(tmp_path / "b", [0.6] * 8, K=8)
    result = compare(a, b)
    row = result.setup.filter(setting="K").row(0, named=True)
    assert (row["a"], row["b"], row["differs"]) == ("4", "8", True)
    assert "not compared" in row["consequence"]
    rates = result.acceptance.filter(measure="conditional")
    overall = rates.filter(pl.col("position").is_null()).row(0, named=True)
    assert overall["difference"] is None
    assert not overall["comparable"]
    assert rates["position"].drop_nulls().to_list() == [0, 1, 2, 3]
    assert rates.filter(pl.col("position") >= 0)["comparable"].all()


@pytest.mark.slow
def test_what_differs_is_said_first(tmp_path: Path) -> None:
    a = make(tmp_path / "a", [0.5] * 6, seed=1)
    b = make(tmp_path / "b", [0.8] * 6, seed=2, drafter="other", device="cuda")
    content, svgs = build_comparison(inspect(a), inspect(b), compare(a, b))
    assert content["sections"][0]["id"] == "setup"
    said = content["sections"][0]["blocks"][0]["text"]
    assert said == "The two differ in drafter, device."
    page = render_html(content, svgs)
    assert "What makes them incomparable" in page
    text = render_markdown(content)
    assert text.index("The two differ in drafter") < text.index("Acceptance length")
    length = (
        compare(a, b)
        .acceptance.filter(pl.col("dataset").is_null(), measure="acceptance_length")
        .row(0, named=True)
    )
    assert length["difference"] < 0
    assert length["distinguishable"]


@pytest.mark.slow
def test_other_prompts_are_not_paired(tmp_path: Path) -> None:
    a = synth_log(tmp_path / "a", num_requests=30, datasets={"one": 0.0})
    b = synth_log(tmp_path / "b", num_requests=30, datasets={"two": 0.0})
    result = compare(a, b)
    prompts = result.setup.filter(setting="prompts").row(0, named=True)
    assert "0 in both, too few to pair" in prompts["consequence"]
    assert not result.predictors["paired"].any()


@pytest.mark.slow
def test_several_cells_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "log", [0.5] * 6, K=2, run="one")
    make(tmp_path / "log", [0.5] * 6, K=3, run="two", seed=3)
    with pytest.raises(InputError, match="log a holds 2 cells"):
        compare(tmp_path / "log", tmp_path / "log")


@pytest.mark.slow
def test_predictors_are_compared_at_the_positions_of_both(tmp_path: Path) -> None:
    """A floor by position would else win for nothing but having more positions."""
    a = make(tmp_path / "a", [0.6] * 8, K=4)
    b = make(tmp_path / "b", [0.6] * 8, K=1)
    result = compare(a, b)
    first = evaluate(a, keep_predictions=True).predictions
    assert first is not None
    rows = result.predictors.filter(predictor="logit_qmax", metric="log_loss").row(0, named=True)
    assert rows["n_a"] == len(first.filter(position=0))
    own = first.filter(position=0)
    loss = np.logaddexp(0, np.where(own["accepted"], -1, 1) * own["logit_qmax"].to_numpy())
    assert rows["a"] == pytest.approx(loss.mean(), abs=1e-12)
    floor = result.predictors.filter(predictor="per_position", metric="auc").row(0, named=True)
    assert abs(floor["a"] - floor["b"]) < 0.05
    overall = result.acceptance.filter(pl.col("position").is_null(), measure="conditional")
    assert overall["difference"].to_list() == [None]


@pytest.mark.slow
def test_a_comparison_says_what_it_is_of(tmp_path: Path) -> None:
    a = make(tmp_path / "a", [0.5] * 6, run="one")
    b = make(tmp_path / "b", [0.6] * 6, run="two", seed=1)
    other = make(tmp_path / "c", [0.6] * 6, run="three", drafter="E")
    result = compare(a, b)
    content, _ = build_comparison(inspect(a), inspect(b), result)
    assert content["title"] == "Side by side: T + D, one and two"
    different, _ = build_comparison(inspect(a), inspect(other), compare(a, other))
    assert different["title"] == "Side by side: T + D and T + E"
    sampling = result.setup.filter(pl.col("setting").is_in(["top-p", "top-k", "min-p"]))
    assert set(sampling["a"]) == {"off"}
