"""The rules that judge the published claims, on logs with known truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.metrics import auc
from draftlab.synth import synth_log
from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "reproduction"))

import claims  # scripts, not a package
import reproduce
import study

if TYPE_CHECKING:
    from study import Study

pytestmark = pytest.mark.slow  # claims are judged on whole studies


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Five workloads whose first intercept falls as the shift does; slope 0.6."""
    shifts = {f"w{i}": 0.6 - 0.3 * i for i in range(5)}
    folder = tmp_path_factory.mktemp("known")
    log = synth_log(folder, num_requests=400, slope=0.6, datasets=shifts, seed=4)
    return study.Study("known", log)


def rows_of(known: Study, item: str) -> dict[str, dict[str, Any]]:
    return {c.text: claims.judge(c, known) for c in claims.CLAIMS if c.item == item}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.3, claims.HOLDS), (-0.3, -0.1, claims.FAILS), (-0.1, 0.1, claims.OPEN)],
)
def test_a_claim_holds_if_its_interval_excludes_the_contrary(
    low: float, high: float, verdict: str
) -> None:
    assert claims.Evidence((low + high) / 2, low, high).verdict == verdict


def test_the_true_feature_wins_and_the_drawn_token_ranks_better(known: Study) -> None:
    found = rows_of(known, "table-features")
    # the truth is a straight line in logit(qmax); log(qmax) bends it
    assert found["logit(qmax) has lower log-loss than log(qmax)"]["verdict"] == claims.HOLDS
    assert found["logit(q_sampled) has higher AUC than logit(qmax)"]["verdict"] == claims.HOLDS
    slopes = [row for text, row in found.items() if text.startswith("one slope")]
    assert len(slopes) == 2
    assert all(row["verdict"] != claims.FAILS for row in slopes)


def test_overconfidence_is_the_mean_of_what_is_promised_too_much(known: Study) -> None:
    row = rows_of(known, "table-features")["qmax, unfitted, predicts more than is accepted"]
    labelled = known.labelled
    promised = 1 / (1 + np.exp(-labelled.feature))
    assert row["value"] == pytest.approx(float(np.mean(promised - labelled.accepted)), abs=1e-12)
    assert (row["verdict"] == claims.HOLDS) == (row["low"] > 0)


def test_differences_point_the_way_of_the_claim(known: Study) -> None:
    row = rows_of(known, "table-features")["logit(qmax) has higher AUC than H(q)"]
    metrics = known.evaluation.metrics.filter(scope="overall", view="conditional")
    by_name = dict(metrics.select("predictor", "auc").iter_rows())
    assert row["value"] == pytest.approx(by_name["logit_qmax"] - by_name["entropy"], abs=1e-9)
    assert row["low"] < row["value"] < row["high"]


def test_without_a_trained_head_nothing_is_said_of_it(known: Study) -> None:
    for item in ("table-head", "table-head-deep", "figure-position-auc"):
        for row in rows_of(known, item).values():
            assert row["verdict"] == claims.OPEN
            assert row["value"] is None
            assert row["remark"]


def test_what_cannot_be_seen_at_this_k_is_said(known: Study) -> None:
    found = rows_of(known, "figure-position-auc")
    assert "K = 5 here" in found["both lose AUC beyond the drafter's block of five"]["remark"]


def test_coefficients_of_resampled_prompts_hold_the_truth(known: Study) -> None:
    fits = known.coefficients
    assert len(fits.slope) == study.REPEATS + 1
    low, high = np.quantile(fits.slope[1:], (0.025, 0.975))
    assert low < 0.6 < high
    row = rows_of(known, "table-pairs")["the slope lies in the published range"]
    assert row["verdict"] == claims.HOLDS


def test_correlations_over_workloads_are_pearsons(known: Study) -> None:
    found = study.correlations(known.by_workload, "acceptance")
    rates = [float(c.acceptance[0]) for c in known.by_workload.values()]
    entropy = [float(c.mean_entropy[0]) for c in known.by_workload.values()]
    assert found[0] == pytest.approx(np.corrcoef(entropy, rates)[0, 1], abs=1e-12)


def test_a_spread_over_pairs_needs_three(known: Study) -> None:
    assert claims.intercepts_spread_more([known, known]) == "only 2 pairs"


def test_labelled_rows_are_those_that_evaluate_grades(known: Study) -> None:
    row = known.evaluation.metrics.filter(
        pl.col("dataset").is_null(), scope="overall", predictor="qmax", view="conditional"
    ).row(0, named=True)
    labelled = known.labelled
    assert row["n"] == len(labelled.accepted)
    assert row["auc"] == pytest.approx(auc(labelled.accepted, labelled.feature), abs=0.01)


def test_every_published_item_has_a_target_and_every_claim_an_item() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = makefile.split("TABLES :=")[1].split("\n\n")[0].replace("\\\n", " ").split()
    assert targets == list(reproduce.PAGES)
    assert {claim.item for claim in claims.CLAIMS} == set(reproduce.PAGES)


def test_the_readme_and_the_verdicts_are_those_of_the_sample() -> None:
    sample = study.Study("default", ROOT / "data" / "sample")
    readme = (ROOT / "README.md").read_text()
    assert reproduce.replace_headline(readme, sample.evaluation, sample.cell) == readme
    verdicts = (ROOT / "reports" / "reproduction" / "verdicts.md").read_text()
    assert all(claim.text in verdicts for claim in claims.CLAIMS)


def test_an_unknown_target_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "table-nothing"])
    with pytest.raises(SystemExit, match="unknown target 'table-nothing'"):
        reproduce.main()


def test_a_users_prompts_get_pages_of_their_own(
    tmp_path: Path, known: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the files nobody can write them again, so the samples' pages never hold them."""
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        Path(file).write_text('{"id": "1", "prompt": "p"}')
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    monkeypatch.setattr(reproduce, "OUT", tmp_path / "out")
    monkeypatch.setattr(reproduce, "collect_prompts", lambda _: known.log)
    reproduce.write_prompts(files, ["table-pairs", "lossless"], whole=True)
    folder = tmp_path / "out" / "a+b"
    assert sorted(path.name for path in folder.iterdir()) == ["table-pairs.md", "verdicts.md"]
    verdicts = (folder / "verdicts.md").read_text()
    assert "Prompts: a.jsonl (SHA-256 " in verdicts
    assert "| item | claim | a+b |" in verdicts
