"""One evaluation for all tests of the report: two cells, hostile names, a trained head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab.log.reader import DraftLog, open_log
from draftlab.reporting.content import build_report
from draftlab.reporting.render import write_report
from draftlab.reporting.run_studies import EvaluateOptions, Studies, plan, run_missing_studies
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.reporting.labels import CellKey

HOSTILE = '<script>alert("x")</script> & $x^2$ --> 日本'
DATASETS = {"code": 0.5, HOSTILE: 0.0, "chat": -0.5, "maths": 0.2}


def write_head_run(folder: Path) -> Path:
    """Write a run of K 2 whose drafter has a trained head, with hostile names."""
    rng = np.random.default_rng(0)
    proposals = []
    for step in range(80):
        feature = rng.normal(1.0, 1.5, size=2)
        first, second = rng.random(2) < 1 / (1 + np.exp(-feature))
        rows = proposal(
            step,
            [bool(first), bool(second) if first else None],
            request=step % 10,
            logit_qmax=feature,
            confidence=feature + rng.normal(size=2),
        )
        proposals.append(rows)
    return write_log(folder, proposals, run="head", drafter=HOSTILE)


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> DraftLog:
    folder = tmp_path_factory.mktemp("log")
    synth_log(folder, num_requests=80, datasets=DATASETS, run="plain")
    write_head_run(folder)
    return open_log(folder)


@pytest.fixture(scope="session")
def evaluation(log: DraftLog) -> Evaluation:
    return evaluate(log)


@pytest.fixture(scope="session")
def studies(log: DraftLog, evaluation: Evaluation) -> Studies:
    return run_missing_studies(log, plan(EvaluateOptions()), given=[evaluation])


@pytest.fixture(scope="session")
def built(studies: Studies) -> tuple[dict[str, Any], dict[str, str]]:
    return build_report(studies)


@pytest.fixture(scope="session")
def folder(
    built: tuple[dict[str, Any], dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the folder of a whole report."""
    return write_report(*built, tmp_path_factory.mktemp("out"), pdf=True).parent


@pytest.fixture(scope="session")
def cells(evaluation: Evaluation) -> dict[str, CellKey]:
    from draftlab.reporting.labels import cells

    return {cell.run: cell for cell in cells(evaluation)}
