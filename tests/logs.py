"""Small hand-made logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.log.writer import LogWriter

if TYPE_CHECKING:
    from pathlib import Path

DATASETS = {"easy": 0.8, "plain": 0.0, "hard": -0.8}
"""Shifts of the log-odds in the shared synthetic log."""
HOSTILE = '<script>alert("x")</script> & $x^2$ --> 日本'
REPORT_DATASETS = {"code": 0.5, HOSTILE: 0.0, "chat": -0.5, "maths": 0.2}
METADATA: dict[str, Any] = {
    "engine": "test 1",
    "target": "T",
    "drafter": "D",
    "method": "draft_model",
    "drafting": "probabilistic",
    "verification": "standard",
    "num_speculative_tokens": 2,
    "feature_source": "head",
    "adaptive_verification": "off",
    "vocab_size": 6,
    "device": "cpu",
    "provenance": {},
}


def proposal(
    step: int, accepted: list[Any], *, request: int = 0, slot: int = 0, **columns: Any
) -> dict[str, Any]:
    """Return the draft rows of one graded proposal; None is an unobserved label."""
    n = len(accepted)
    labels = np.ma.array([bool(a) for a in accepted], mask=[a is None for a in accepted])
    rows = {
        "request": np.full(n, request),
        "step": np.full(n, step),
        "verify_step": np.full(n, step + 1),
        "slot": np.full(n, slot),
        "position": np.arange(n),
        "admitted": np.ones(n, dtype=bool),
        "accepted": labels,
        "excluded": np.zeros(n, dtype=np.uint16),
        "logit_qmax": np.linspace(-1.0, 2.0, n),
        "top2_margin": np.linspace(0.5, 2.0, n),
        "entropy": np.linspace(2.0, 0.5, n),
        "logit_q_sampled": np.linspace(-2.0, 1.0, n),
    }
    return rows | {name: np.asanyarray(values) for name, values in columns.items()}


def write_log(folder: Path, proposals: list[dict[str, Any]], **metadata: Any) -> Path:
    """Write a run with one step per proposal; return its folder."""
    with LogWriter(folder, METADATA | metadata) as log:
        for request in sorted({int(p["request"][0]) for p in proposals}):
            log.request(
                request,
                group=f"g{request}",
                dataset="even" if request % 2 == 0 else "odd",
                temperature=1.0,
                prompt_tokens=3,
                output_tokens=5,
                finish_reason="stop",
            )
        for rows in proposals:
            log.step({"step": int(rows["step"][0])}, rows)
    return log.folder


def until_rejection(num_accepted: int, K: int) -> list[Any]:
    """Return the labels of a proposal: accepted, then one rejection, then unobserved."""
    return ([True] * num_accepted + [False] + [None] * K)[:K]
