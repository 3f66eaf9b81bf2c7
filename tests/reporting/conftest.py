"""The report's log, studies and content under short names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.log.reader import DraftLog
    from draftlab.reporting.labels import CellKey
    from draftlab.reporting.run_studies import Studies
    from draftlab.studies.evaluate import Evaluation


@pytest.fixture(scope="session")
def log(report_log: DraftLog) -> DraftLog:
    return report_log


@pytest.fixture(scope="session")
def evaluation(report_evaluation: Evaluation) -> Evaluation:
    return report_evaluation


@pytest.fixture(scope="session")
def studies(report_studies: Studies) -> Studies:
    return report_studies


@pytest.fixture(scope="session")
def built(
    report_built: tuple[dict[str, Any], dict[str, str]],
) -> tuple[dict[str, Any], dict[str, str]]:
    return report_built


@pytest.fixture(scope="session")
def folder(report_folder: Path) -> Path:
    return report_folder


@pytest.fixture(scope="session")
def cells(evaluation: Evaluation) -> dict[str, CellKey]:
    from draftlab.reporting.labels import cells

    return {cell.run: cell for cell in cells(evaluation)}
