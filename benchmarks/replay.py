"""Time the replay of vLLM's estimator against river's logistic regression on the same labels.

A synthetic log with 64 requests a step and K = 7, on one core. Two lines come out:

- ``rule in memory``: predict, learn and refit on arrays in memory, as river gets its labels. This
  is the ratio of the two estimators.
- ``replay``: what `draftlab replay --estimator vllm --no-offline` does: reading, the rule, grading
  by window, tables. river reads and grades nothing, so this ratio is the harder one.

river is fed one label at a time, predict then learn, on a part of them; its time is per label.
Seconds are of the processor; wall time stands beside them. Run:
python benchmarks/replay.py [--labelled 4470000] [--river-labels 100000] [--log DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.log.reader import open_log
from draftlab.online.estimator import Labels, probability
from draftlab.online.vllm import VllmEstimator
from draftlab.studies.replay.replay import replay
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_POSITIONS = 7
STEPS_PER_REQUEST = 60
LABELS_PER_PROPOSAL = 2.1
"""About, at the coefficients of `synth_log`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labelled", type=int, default=4_470_000)
    parser.add_argument("--river-labels", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--log", type=Path, help="use this log; [default: make one]")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(arguments.log or scratch)
        if arguments.log is None:
            # In a process of its own: its memory is not the replay's.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                pool.submit(_make_log, folder, arguments.labelled).result()
        whole = _time(lambda: replay(folder, estimators="vllm", offline=False), arguments.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows = open_log(folder).runs[0].rows["drafts"]
        labels = _read(folder)
    rule = _time(lambda: _run_rule(labels), arguments.repeats)
    river = _time_river(labels, arguments.river_labels)
    for what, seconds in (("rule in memory", rule), ("replay", whole)):
        line = _describe(what, seconds, len(labels), river)
        if what == "replay":
            line |= {"rows": rows, "peak_memory_mb": round(peak)}
        print(json.dumps(line | {"cores": os.cpu_count(), "machine": platform.machine()}))


def _make_log(folder: str, labelled: int) -> None:
    synth_log(
        folder,
        num_requests=max(1, round(labelled / LABELS_PER_PROPOSAL / STEPS_PER_REQUEST)),
        num_positions=NUM_POSITIONS,
        steps_per_request=STEPS_PER_REQUEST,
        concurrency=64,
    )


def _time(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the medians of processor and wall time, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.process_time(), time.perf_counter()
        run()
        times.append((time.process_time() - started[0], time.perf_counter() - started[1]))
    cpu, wall = zip(*times, strict=True)
    return statistics.median(cpu), statistics.median(wall)


def _describe(
    what: str, seconds: tuple[float, float], labelled: int, river: float
) -> dict[str, Any]:
    return {
        "benchmark": what,
        "labelled": labelled,
        "draftlab_s": round(seconds[0], 3),
        "draftlab_wall_s": round(seconds[1], 3),
        "draftlab_ns_per_label": round(1e9 * seconds[0] / labelled, 1),
        "river_ns_per_label": round(1e9 * river, 1),
        "ratio": round(river * labelled / seconds[0], 1),
    }


def _read(folder: str) -> pl.DataFrame:
    return (
        open_log(folder)
        .drafts.filter(pl.col("accepted").is_not_null())
        .select("logit_qmax", "position", "accepted", "verify_step")
        .collect()
    )


def _run_rule(labels: pl.DataFrame) -> float:
    """Predict and learn every label, with a refit every 100 steps; return the last slope."""
    feature = labels["logit_qmax"].to_numpy().astype(np.float64)
    position = labels["position"].to_numpy().astype(np.int64)
    accepted, step = labels["accepted"].to_numpy(), labels["verify_step"].to_numpy()
    estimator = VllmEstimator(NUM_POSITIONS)
    ends = np.searchsorted(step, np.arange(99, int(step[-1]) + 100, 100), side="right")
    low = 0
    for high in ends.tolist():
        f, k = feature[low:high], position[low:high]
        logit = estimator.slope * f + estimator.intercepts[k]
        prob = probability(logit)
        estimator.learn(Labels(f, k, logit, accepted[low:high], step[low:high], prob))
        estimator.refit()
        low = high
    return estimator.slope


def _time_river(labels: pl.DataFrame, count: int) -> float:
    """Return river's seconds per label."""
    from river import linear_model, optim

    model = linear_model.LogisticRegression(optim.SGD(0.05))
    rows = list(labels.select("logit_qmax", "position", "accepted").head(count).iter_rows())
    started = time.process_time()
    for feature, position, accepted in rows:
        x = {"feature": feature, position: 1.0}
        model.predict_proba_one(x)
        model.learn_one(x, accepted)
    return (time.process_time() - started) / len(rows)


if __name__ == "__main__":
    main()
