"""The audit: proofs, derivations, and the exact error of trimming on kept distributions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.predictors.baselines import PREDICTORS
from draftlab.studies.audit.audit import Audit, audit, measure, read_distributions
from draftlab.studies.audit.conformity import check_samples
from draftlab.studies.audit.distributions import (
    EXACT,
    Distributions,
    candidate_columns,
    output_error,
)
from draftlab.studies.audit.exact import output_distribution, total_variation
from draftlab.studies.audit.proofs import enumerate_policies, prove
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

LOSSLESS = ("log_qmax", "top2_margin", "entropy", "logit_qmax", "qmax", "constant", "overlap")
LOSSY = ("logit_q_sampled", "loglog_q_sampled", "accept_prob")


def random_rows(seed: int, count: int = 40, vocab: int = 30) -> Distributions:
    """Return rows whose target is truncated to some tokens, as under top-p."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(vocab, 0.3), size=count)
    p = 0.5 * q + 0.5 * rng.dirichlet(np.full(vocab, 0.3), size=count)
    p[p < 0.05] = 0.0
    p /= p.sum(axis=1, keepdims=True)
    return Distributions(
        position=rng.integers(0, 3, count),
        starts=np.arange(0, count * vocab, vocab),
        tail=np.zeros(count * vocab, dtype=bool),
        p=p.ravel(),
        q=q.ravel(),
    )


def write_distributions(folder: Path, rows: Distributions) -> None:
    ends = [*rows.starts[1:].tolist(), len(rows.p)]
    slices = [slice(a, b) for a, b in zip(rows.starts.tolist(), ends, strict=True)]
    table = pl.DataFrame(
        {
            "request": [0] * len(rows),
            "step": [0] * len(rows),
            "position": rows.position,
            "tokens": [[*range(s.stop - s.start - 1), -1] for s in slices],
            "p": [rows.p[s].tolist() for s in slices],
            "q": [rows.q[s].tolist() for s in slices],
        },
        schema_overrides={"tokens": pl.List(pl.Int32), "p": pl.List(pl.Float32),
                          "q": pl.List(pl.Float32)},
    )  # fmt: skip
    (folder / "distributions").mkdir()
    table.write_parquet(folder / "distributions" / "part-00000.parquet")


def test_proofs_agree_with_theory() -> None:
    for proof in (*prove(), *enumerate_policies()):
        assert proof.passed, proof
        assert (proof.total_variation == 0) is proof.lossless
    known = {proof.name: float(proof.total_variation) for proof in prove()}
    assert (known["trim_by_drawn_token"], known["verify_one_token_only"]) == (0.1, 0.15)


def test_output_error_is_that_of_each_row_alone() -> None:
    rows = random_rows(0)
    admitted = np.random.default_rng(1).random(len(rows.p)) < 0.5
    found = output_error(rows, admitted)
    for i, start in enumerate(rows.starts):
        part = slice(start, start + 30)
        p, q = rows.p[part].tolist(), rows.q[part].tolist()
        out = output_distribution(p, q, admitted[part].tolist())
        assert found[i] == pytest.approx(float(total_variation(out, p)), abs=1e-14)


def test_equal_distributions_reject_nothing() -> None:
    rows = random_rows(0)
    same = Distributions(rows.position, rows.starts, rows.tail, rows.p, rows.p)
    assert output_error(same, np.ones(len(rows.p), dtype=bool)).max() < EXACT


def test_columns_of_candidates_by_hand() -> None:
    q, p = np.array([0.5, 0.3, 0.2, 0.9, 0.1]), np.array([0.4, 0.6, 0.0, 0.9, 0.1])
    tail = np.array([False, False, True, False, False])
    rows = Distributions(np.array([0, 1]), np.array([0, 3]), tail, p, q)
    columns = candidate_columns(rows)
    log_odds = [0.0, np.log(0.3 / 0.7), np.log(0.2 / 0.8), np.log(9), np.log(1 / 9)]
    np.testing.assert_allclose(columns["logit_q_sampled"], log_odds, atol=1e-12)
    np.testing.assert_allclose(columns["logit_qmax"], [0.0] * 3 + [np.log(9)] * 2, atol=1e-12)
    np.testing.assert_allclose(columns["top2_margin"][[0, 3]], [np.log(5 / 3), np.log(9)])
    np.testing.assert_allclose(columns["overlap"], [0.7] * 3 + [1.0] * 2)
    np.testing.assert_allclose(columns["accept_prob"], [0.8, 1.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(columns["entropy"][3], -0.9 * np.log(0.9) - 0.1 * np.log(0.1))


def test_lossless_features_are_exact_and_sampled_ones_are_not() -> None:
    rows = random_rows(2)
    predictors = [PREDICTORS[name] for name in (*LOSSLESS, *LOSSY)]
    slopes = {name: (np.ones(3), np.linspace(0.5, -0.5, 3)) for name in ("logit_q_sampled",)}
    found = pl.DataFrame(measure(rows, predictors, slopes, (0.1, 0.3, 0.5), "probabilistic"))
    exact = found.filter(pl.col("lossless"))
    assert set(exact["name"]) == set(LOSSLESS)
    assert exact["total_variation_max"].max() <= EXACT  # type: ignore[operator]
    assert exact["passed"].all()
    lossy = found.filter(~pl.col("lossless"))
    by_name = lossy.group_by("name").agg(pl.col("total_variation").max())
    assert set(by_name["name"]) == set(LOSSY)
    assert by_name["total_variation"].min() > 0.01  # type: ignore[operator]


def test_a_threshold_that_trims_everything_or_nothing_is_exact() -> None:
    found = measure(random_rows(2), [PREDICTORS["accept_prob"]], {}, (0.0, 1.0), "probabilistic")
    assert found[0]["trimmed_share"] == 0.0
    assert max(row["total_variation_max"] for row in found) <= 1.0
    assert found[0]["total_variation_max"] <= EXACT


def test_derived_from_what_is_read() -> None:
    checks = audit().checks.filter(kind="derived")
    for drafting in ("probabilistic", "greedy"):
        rows = checks.filter(drafting=drafting)
        verdicts = dict(zip(rows["name"], rows["lossless"], strict=True))
        for name in (*LOSSLESS, "confidence", "hybrid", "oracle"):
            assert verdicts[name], name
        for name in LOSSY:
            assert verdicts[name] is (drafting == "greedy"), name
    reasons = dict(zip(checks["name"], checks["reason"], strict=True))
    assert reasons["constant"] == "reads the position only"
    assert "function of the prefix" in reasons["logit_q_sampled"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = synth_log(tmp_path_factory.mktemp("log"), num_requests=40, num_positions=3)
    write_distributions(folder, random_rows(5))
    return folder


def test_a_log_with_distributions_is_measured(run: Path, tmp_path: Path) -> None:
    names = ["logit_qmax", "logit_q_sampled", "accept_prob", "constant"]
    result = audit(run, predictors=names, thresholds=(0.3, 0.6), out=tmp_path)
    rows = result.checks.filter(kind="measured")
    assert rows.height == 8
    assert rows["n"].unique().to_list() == [40]
    exact = rows.filter(pl.col("lossless"))
    assert exact["total_variation_max"].max() <= EXACT  # type: ignore[operator]
    lossy = rows.filter(pl.col("name") == "logit_q_sampled", pl.col("trimmed_share") > 0.05)
    assert lossy["total_variation"].max() > 1e-3  # type: ignore[operator]
    assert result.passed
    content = json.loads((tmp_path / "audit" / "result.json").read_text())
    assert content["passed"] is True
    assert pl.read_parquet(tmp_path / "audit" / "checks.parquet").equals(result.checks)


def test_distributions_are_normalised(run: Path) -> None:
    rows = read_distributions(run)
    assert rows is not None
    np.testing.assert_allclose(rows.total(rows.p), 1.0, atol=1e-14)
    np.testing.assert_allclose(rows.total(rows.q), 1.0, atol=1e-14)
    assert rows.tail.sum() == len(rows)


def test_a_log_without_distributions_says_so(small_run: Path) -> None:
    result = audit(small_run)
    assert result.checks.filter(kind="measured").is_empty()
    assert "--log-distributions" in str(result.notes[0])


def test_engines_stand_in_the_table() -> None:
    wrong = check_samples([0] * 900 + [1] * 100, {0: 0.5, 1: 0.5})
    result = audit(predictors=["constant"], engine={"broken": wrong})
    assert not result.passed
    [row] = result.checks.filter(kind="engine").to_dicts()
    assert row["name"] == "broken"
    assert row["total_variation"] == pytest.approx(0.4)
    assert row["reason"].startswith("does not sample")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predictors": ["magic"]}, "unknown predictor 'magic'"),
        ({"thresholds": [1.5]}, "threshold must lie"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        audit(**options)


def test_the_result_is_frozen() -> None:
    with pytest.raises(AttributeError):
        audit(predictors=["constant"]).notes = []  # type: ignore[misc]
    assert Audit.__dataclass_params__.frozen  # type: ignore[attr-defined]
