"""A function of the package in a process of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.processes import run_process
from draftlab.reporting import gathering
from draftlab.structuring import TABLES, structure
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl


def test_the_answer_is_that_of_another_process() -> None:
    assert run_process(os.getpid) != os.getpid()


def test_what_the_function_raises_is_raised() -> None:
    with pytest.raises(InputError, match="blocks must be at least 2"):
        run_process(structure, "nowhere", blocks=1)


def test_what_it_prints_does_not_spoil_the_answer() -> None:
    assert run_process(print, "a word") is None


def test_a_process_that_ends_early_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with exit status 3"):
        run_process(os._exit, 3)


def test_a_report_of_a_large_log_shows_the_same_structure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(synth_log(tmp_path, num_requests=60))
    here = gathering.gather(log, gathering.Options()).structure
    monkeypatch.setattr(gathering, "_WORTH_A_PROCESS", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    there = gathering.gather(log, gathering.Options()).structure
    whole = structure(log)
    for name in TABLES:
        tables: list[pl.DataFrame] = [getattr(one, name) for one in (here, there, whole)]
        assert tables[0].equals(tables[1], null_equal=True), name
        assert tables[0].columns == tables[2].columns, name
        assert len(tables[0]) == len(tables[2]), name
