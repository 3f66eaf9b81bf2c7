"""Time the replay of vLLM's estimator against river's logistic regression on the same labels.

A synthetic log with 64 requests a step and K = 7; the replay's time includes reading. river is fed
one label at a time, on a part of them, and its time is scaled. Run:
python benchmarks/replay.py [--labelled 4470000] [--river-labels 100000]
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

import polars as pl

from draftlab.log.reader import open_log
from draftlab.replaying import Settings, replay
from draftlab.synth import synth_log

STEPS_PER_REQUEST = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labelled", type=int, default=4_470_000)
    parser.add_argument("--river-labels", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # About 2.9 labels a proposal at these coefficients.
        requests = max(1, round(arguments.labelled / 2.9 / STEPS_PER_REQUEST))
        synth_log(
            folder,
            num_requests=requests,
            num_positions=7,
            steps_per_request=STEPS_PER_REQUEST,
            concurrency=64,
        )
        settings = Settings(("vllm",), offline=False)
        times = []
        for _ in range(arguments.repeats):
            started = time.perf_counter()
            result = replay(folder, settings=settings)
            times.append(time.perf_counter() - started)
        labelled = int(result.summary["n"][0])
        rows = open_log(folder).runs[0].rows["drafts"]
        river = _river(folder, arguments.river_labels)
    ours = statistics.median(times)
    line = {
        "benchmark": "replay",
        "rows": rows,
        "labelled": labelled,
        "draftlab_s": round(ours, 3),
        "draftlab_ns_per_label": round(1e9 * ours / labelled, 1),
        "river_ns_per_label": round(1e9 * river, 1),
        "ratio": round(river * labelled / ours, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    print(json.dumps(line))


def _river(folder: str, count: int) -> float:
    """Return river's seconds per label."""
    from river import linear_model, optim

    rows = (
        open_log(folder)
        .drafts.filter(pl.col("accepted").is_not_null())
        .select("logit_qmax", "position", "accepted")
        .head(count)
        .collect()
    )
    model = linear_model.LogisticRegression(optim.SGD(0.05))
    labels = list(rows.iter_rows())
    started = time.perf_counter()
    for feature, position, accepted in labels:
        x = {"feature": feature, position: 1.0}
        model.predict_proba_one(x)
        model.learn_one(x, accepted)
    return (time.perf_counter() - started) / len(labels)


if __name__ == "__main__":
    main()
