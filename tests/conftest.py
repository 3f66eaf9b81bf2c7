"""Logs, evaluations and a report that many tests read and none changes, made once a session."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from hypothesis import settings

from draftlab.log.reader import DraftLog, open_log
from draftlab.synth import synth_log
from tests.logs import DATASETS, HOSTILE, REPORT_DATASETS, proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from draftlab.reporting.content import Sections
    from draftlab.reporting.run_studies import Studies
    from draftlab.studies.evaluate import Evaluation

T = TypeVar("T")

# an example takes as long as it takes: on a busy machine a deadline fails without a cause
settings.register_profile("draftlab", deadline=None)
settings.load_profile("draftlab")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of the session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(folder: Path, name: str, make: Callable[[], T]) -> T:
    """Return what ``make`` makes; the first worker that asks makes it, the others read it."""
    path = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(pickle.dumps(make()))
    made: T = pickle.loads(path.read_bytes())
    return made


@pytest.fixture(scope="session")
def small_run(shared_folder: Path) -> Path:
    """Return a synthetic run of 60 requests in one dataset; 6,000 rows, to be read only."""
    return once(
        shared_folder, "small", lambda: synth_log(shared_folder / "small-log", num_requests=60)
    )


@pytest.fixture(scope="session")
def synthetic_run(shared_folder: Path) -> Path:
    """Return a synthetic run of 240 requests in the datasets of `DATASETS`, to be read only."""

    def make() -> Path:
        folder = shared_folder / "synthetic-log"
        return synth_log(folder, num_requests=240, datasets=DATASETS)

    return once(shared_folder, "synthetic", make)


@pytest.fixture(scope="session")
def synthetic_evaluation(synthetic_run: Path, shared_folder: Path) -> Evaluation:
    """Return its cross-fitted evaluation, with predictions."""
    from draftlab.studies.evaluate import evaluate

    return once(shared_folder, "evaluation", lambda: evaluate(synthetic_run, keep_predictions=True))


# --- the report of a log with two cells, hostile names and a trained head


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
def report_log(shared_folder: Path) -> DraftLog:
    """Return a log of two runs, hence two cells."""

    def make() -> Path:
        folder = shared_folder / "report-log"
        synth_log(folder, num_requests=80, datasets=REPORT_DATASETS, run="plain")
        write_head_run(folder)
        return folder

    return open_log(once(shared_folder, "report-log", make))


@pytest.fixture(scope="session")
def report_evaluation(report_log: DraftLog, shared_folder: Path) -> Evaluation:
    """Return its evaluation, all that most figures and tables need."""
    from draftlab.studies.evaluate import evaluate

    return once(shared_folder, "report-evaluation", lambda: evaluate(report_log))


@pytest.fixture(scope="session")
def report_studies(
    report_log: DraftLog, report_evaluation: Evaluation, shared_folder: Path
) -> Studies:
    """Return every study of the log that a report shows."""
    from draftlab.reporting.run_studies import EvaluateOptions, plan, run_missing_studies

    def make() -> Studies:
        calls = plan(EvaluateOptions())
        return run_missing_studies(report_log, calls, given=[report_evaluation])

    return once(shared_folder, "report-studies", make)


@pytest.fixture(scope="session")
def report_drawn(report_studies: Studies, shared_folder: Path) -> dict[str, Sections]:
    """Return the drawn sections of each study, from which a report is put together at no cost."""
    from draftlab.reporting.content import draw_study, named_cells

    def make() -> dict[str, Sections]:
        cells = named_cells(report_studies.evaluation)
        results = report_studies.results.items()
        return {name: draw_study(name, result, cells) for name, result in results}

    return once(shared_folder, "report-drawn", make)


@pytest.fixture(scope="session")
def report_built(
    report_studies: Studies,
    report_drawn: dict[str, Sections],
    shared_folder: Path,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return content and figures of the report."""
    from draftlab.reporting.content import build_report

    def make() -> tuple[dict[str, Any], dict[str, str]]:
        return build_report(report_studies, copy.deepcopy(report_drawn))

    return once(shared_folder, "report-built", make)


@pytest.fixture(scope="session")
def report_folder(report_built: tuple[dict[str, Any], dict[str, str]], shared_folder: Path) -> Path:
    """Return the folder of the whole report, PDF and all."""
    from draftlab.reporting.render import write_report

    folder = shared_folder / "report"
    return once(
        shared_folder, "report", lambda: write_report(*report_built, folder, pdf=True).parent
    )
