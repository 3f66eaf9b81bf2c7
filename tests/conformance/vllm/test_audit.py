"""The audit of an engine, on vLLM itself: one of its model runners samples wrongly on a CPU.

Runs only in the environment that `run.py` prepares. The V1 runner divides the target's logits by
uninitialised memory there: what an audit is for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make conformance")
if "PYTHONPATH" not in os.environ or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in the environment of run.py", allow_module_level=True)

from tests.conformance.vllm.runner import RUNNERS, STATED


def run_audit(name: str, folder: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("runner.py")
    done = subprocess.run(
        [sys.executable, str(script), name, str(folder)],
        env=os.environ | RUNNERS[name],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    assert verdict["drafts"] > verdict["accepted"] > 0, "nothing was speculated"
    return verdict


def test_the_unpatched_v1_runner_fails(tmp_path: Path) -> None:
    verdict = run_audit("v1", tmp_path)
    assert verdict["runner"].startswith("vllm.v1.worker.cpu_model_runner"), verdict
    assert verdict["passed"] is False, verdict["sentence"]
    assert verdict["total_variation"] > STATED["tv"] + verdict["noise"]


@pytest.mark.parametrize("name", ["v1_mended", "v2"])
def test_a_right_runner_passes(name: str, tmp_path: Path) -> None:
    verdict = run_audit(name, tmp_path)
    assert verdict["passed"] is True, verdict["sentence"]
    assert verdict["n"] >= verdict["needed"] >= 500
