"""The command line called in this process, and a small log of its own for each test."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from draftlab.cli import main
from tests.cli.command import Outcome
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["draftlab", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def hundred_proposals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of 100 proposals of two drafts each, to be read only."""
    rows = [proposal(s, [True, s % 3 > 0], request=s % 7) for s in range(70)]
    rows += [proposal(s, [False, None], request=s % 7) for s in range(70, 100)]
    return write_log(tmp_path_factory.mktemp("cli") / "log", rows).parent


@pytest.fixture
def log(hundred_proposals: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may harm."""
    return shutil.copytree(hundred_proposals, tmp_path / "log")
