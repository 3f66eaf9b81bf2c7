"""Time `draftlab.evaluate` against the straightforward scikit-learn pipeline on the same log.

Both refit the seven features with a shared slope and per-position intercepts, cross-fitted over
the same folds, and grade AUC, log-loss, Brier and ECE overall, without position 0, by position,
by dataset and by both; draftlab also gives intervals by prompt and paired differences.

Run: python benchmarks/evaluate.py [--requests 2000] [--out FILE]. With --big it evaluates 4.47
million labelled drafts of 10.5 million proposed (7 positions, 5 workloads, every predictor, all
scopes, both views, intervals on) and prints seconds and peak memory; making that log takes a
minute or two and 0.5 GB of disk, and is not in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from draftlab import evaluate
from draftlab.features import FEATURES
from draftlab.log.reader import open_log
from draftlab.studies.evaluate import Evaluation
from draftlab.synth import synth_log

LOAD_BEFORE = os.getloadavg()[0]
DATASETS = {"a": 0.4, "b": 0.1, "c": 0.0, "d": -0.2, "e": -0.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--big", action="store_true", help="Time 4.47 million labelled drafts.")
    arguments = parser.parse_args()
    line = _big() if arguments.big else _against_sklearn(arguments)
    line |= {"cores": os.cpu_count(), "machine": platform.machine()}
    line["load_before"] = round(LOAD_BEFORE, 2)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(line) + "\n")
    print(json.dumps(line))


def _big() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        synth_log(
            folder,
            num_requests=5000,
            num_positions=7,
            datasets=DATASETS,
            steps_per_request=300,
            concurrency=64,
            intercepts=[1.1 - 0.05 * k for k in range(7)],
            request_effect_sd=0.5,
        )
        # a fresh process: its peak memory is that of the evaluation alone
        code = (
            "import json, resource, sys, time; from draftlab import evaluate; "
            "t = time.perf_counter(); r = evaluate(sys.argv[1]); "
            "overall = r.metrics.filter(scope='overall'); "
            "print(json.dumps({'benchmark': 'evaluate-big', 'rows': overall['n'][0], "
            "'predictors': len(overall), 'draftlab_s': round(time.perf_counter() - t, 1), "
            "'cpu_s': round(time.process_time(), 1), 'peak_gb': "
            "round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, folder], check=True, capture_output=True, text=True
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _against_sklearn(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        synth_log(folder, num_requests=arguments.requests, num_positions=7, datasets=DATASETS)
        ours = statistics.median(_time(lambda: _ours(folder)) for _ in range(arguments.repeats))
        result = _ours(folder)
        assert result.predictions is not None
        started = time.perf_counter()
        theirs_auc = run_sklearn(folder, result.predictions)
        theirs = time.perf_counter() - started
    overall = result.metrics.filter(scope="overall", predictor="logit_qmax")
    line: dict[str, Any] = {
        "benchmark": "evaluate",
        "rows": overall["n"].item(),
        "draftlab_s": round(ours, 3),
        "sklearn_s": round(theirs, 3),
        "ratio": round(theirs / ours, 1),
        "auc_difference": abs(theirs_auc - overall["auc"].item()),
    }
    return line


def _time(call: object) -> float:
    assert callable(call)
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _ours(folder: str) -> Evaluation:
    return evaluate(folder, predictors=list(FEATURES), keep_predictions=True)


def run_sklearn(folder: str, folds: pl.DataFrame) -> float:
    """Fit and grade the seven features in scikit-learn; return the overall AUC of logit_qmax."""
    keys = ["run", "step", "slot", "position"]
    rows = (
        open_log(folder)
        .drafts.select(*keys, *(f.expr.alias(name) for name, f in FEATURES.items()))
        .collect()
        .join(folds.select(*keys, "dataset", "fold", "accepted"), on=keys)
    )
    accepted = rows["accepted"].to_numpy()
    fold = rows["fold"].to_numpy()
    positions = OneHotEncoder().fit_transform(rows["position"].to_numpy()[:, None])
    auc = float("nan")
    for name in FEATURES:
        feature = rows[name].to_numpy()
        design = hstack([csr_matrix(feature[:, None]), positions]).tocsr()
        logit = np.empty(len(feature))
        for held_out in np.unique(fold):
            train = fold != held_out
            model = LogisticRegression(C=np.inf, fit_intercept=False, max_iter=1000, tol=1e-8)
            model.fit(design[train], accepted[train])
            logit[~train] = model.decision_function(design[~train])
        for mask in _scopes(rows):
            value = _grade(accepted, logit, fold, mask)
            if name == "logit_qmax" and mask.all():
                auc = value
    return auc


def _scopes(rows: pl.DataFrame) -> list[np.ndarray]:
    position, dataset = rows["position"].to_numpy(), rows["dataset"].to_numpy()
    masks = [np.ones(len(position), dtype=bool), position > 0]
    masks += [position == k for k in np.unique(position)]
    masks += [dataset == d for d in np.unique(dataset)]
    masks += [
        (position == k) & (dataset == d) for k in np.unique(position) for d in np.unique(dataset)
    ]
    return masks


def _grade(y: np.ndarray, logit: np.ndarray, fold: np.ndarray, mask: np.ndarray) -> float:
    y, logit, fold = y[mask], logit[mask], fold[mask]
    prob = expit(logit)
    log_loss(y, prob, labels=[False, True])
    brier_score_loss(y, prob)
    index = np.minimum((prob * 15).astype(int), 14)
    gap = np.bincount(index, prob - y, minlength=15)
    np.abs(gap).sum()
    values, weights = [], []
    for held_out in np.unique(fold):
        part = fold == held_out
        positives = int(y[part].sum())
        pairs = positives * (int(part.sum()) - positives)
        if pairs:
            values.append(roc_auc_score(y[part], logit[part]))
            weights.append(pairs)
    return float(np.average(values, weights=weights)) if weights else float("nan")


if __name__ == "__main__":
    main()
