"""Time `draftlab.simulate`: 20 policies at 8 concurrencies over a synthetic log.

The published evaluation has 4.47 million labelled drafts. Run:
python benchmarks/simulate.py [--labelled 4470000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from pathlib import Path

import polars as pl

from draftlab.log.reader import open_log
from draftlab.policies.cost import HARDWARE, MODELS, roofline
from draftlab.studies.simulate.simulate import simulate
from draftlab.synth import synth_log

CONCURRENCIES = (2, 4, 8, 16, 32, 64, 128, 256)
POLICIES = (
    *("fixed", "clairvoyant", "draft-verify", "threshold/logit_qmax", "specdec/logit_qmax"),
    *("dspark/logit_qmax", "dspark-deployed/logit_qmax", "av-gain/logit_qmax"),
    *("av/logit_qmax", "av/top2_margin", "av/qmax", "av/hybrid", "av/oracle", "av/online-vllm"),
    "av/constant",
)
STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labelled", type=int, default=4_470_000)
    parser.add_argument("--log", type=Path, default=None, help="use this log instead")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = arguments.log or Path(folder)
        if arguments.log is None:
            # of five drafts of a synthetic proposal about 2.1 are labelled
            requests = round(arguments.labelled / (2.1 * STEPS))
            synth_log(log, num_requests=requests, steps_per_request=STEPS, request_effect_sd=0.5)
        opened = open_log(log)
        table = roofline(HARDWARE["A100-80GB"], MODELS["llama-8b"], drafter_share=0.02)
        labelled = opened.drafts.select(pl.col("accepted").is_not_null().sum()).collect().item()
        started = time.perf_counter()
        result = simulate(opened, table, policies=POLICIES, concurrencies=CONCURRENCIES)
        seconds = time.perf_counter() - started
    line = {
        "benchmark": "simulate",
        "labelled": labelled,
        "drafts": sum(run.rows["drafts"] for run in opened.runs),
        "policies": len(result.frontier.unique(["policy", "predictor", "verify_length"])),
        "concurrencies": len(CONCURRENCIES),
        "seconds": round(seconds, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(line) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
