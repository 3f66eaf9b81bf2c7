"""Time `draftlab report` on the sample log, start of Python and PDF included.

Beside it, in the same run, stands what scikit-learn takes for the headline table alone: the
seven features cross-fitted and graded as `benchmarks/evaluate.py` does it. The clock of a shared
machine may run at half its speed for a while; the ratio of the two does not care.

Run: python benchmarks/report.py [--log data/sample] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from evaluate import run_sklearn

from draftlab import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", default="data/sample")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    predictions = evaluate(arguments.log, keep_predictions=True).predictions
    assert predictions is not None
    reports, peers = [], []
    for _ in range(arguments.repeats):  # in turns: both meet the same minutes
        reports.append(_time_report(arguments.log))
        started = time.perf_counter()
        run_sklearn(arguments.log, predictions)
        peers.append(time.perf_counter() - started)
    seconds, peer = statistics.median(reports), statistics.median(peers)
    line = {
        "benchmark": "report",
        "rows": len(predictions),
        "draftlab_s": round(seconds, 2),
        "cpu_s": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime / len(reports), 2),
        "sklearn_headline_s": round(peer, 2),
        "ratio": round(peer / seconds, 2),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "load_before": round(load_before, 2),
    }
    print(json.dumps(line))


def _time_report(log: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "draftlab", "report", log, "--out", folder]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
