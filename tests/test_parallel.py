"""A generator of the package in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.parallel import stream_process
from draftlab.reporting import run_studies
from draftlab.studies.stability.stability import stability

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.slow
def test_items_come_in_order_from_another_process() -> None:
    with stream_process(_count, 3) as items:
        assert list(items) == [0, 1, 2]
    with stream_process(_tell_process) as others:
        assert next(others) != os.getpid()


@pytest.mark.slow
def test_an_item_is_there_before_the_last_one_is_made() -> None:
    with stream_process(_wait_behind_first) as items:
        assert next(items) == "first"


@pytest.mark.slow
def test_what_the_function_raises_is_raised_behind_its_items() -> None:
    with stream_process(_fail_behind, 2) as items:
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(InputError, match="behind 2"):
            next(items)


@pytest.mark.slow
def test_what_it_prints_does_not_spoil_the_items() -> None:
    with stream_process(_print_between) as items:
        assert list(items) == [1, 2]


@pytest.mark.slow
def test_a_process_that_ends_early_is_an_error() -> None:
    with (
        stream_process(_exit_behind_one) as items,
        pytest.raises(RuntimeError, match="_exit_behind_one ended with exit status 3"),
    ):
        assert list(items) == [1]


@pytest.mark.slow
def test_an_error_of_the_caller_ends_the_process(tmp_path: Path) -> None:
    """It is ended, not waited for: it never comes to its last line."""
    seen: list[int] = []

    def fail_behind_first_item() -> None:
        with stream_process(_tell_and_wait, tmp_path / "done") as items:
            seen.append(next(items))
            raise KeyError

    with pytest.raises(KeyError):
        fail_behind_first_item()
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
    assert not (tmp_path / "done").exists()


@pytest.mark.slow
def test_studies_of_a_large_log_are_the_same_from_a_process_of_their_own(
    small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(small_run)
    calls = run_studies.plan(run_studies.EvaluateOptions())
    here = run_studies.run_missing_studies(log, calls)
    monkeypatch.setattr(run_studies, "_WORTH_A_PROCESS", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    there = run_studies.run_missing_studies(log, calls)
    assert there.left_out == here.left_out
    assert set(there.results) == set(here.results) == set(calls) - {"drift"}  # one workload
    for name, result in here.results.items():
        for table, frame in result.tables.items():
            assert frame.equals(there.results[name].tables[table]), (name, table)
    shown = there.results["stability"].tables["ceiling_share"]
    assert shown.equals(stability(log).ceiling_share)


_LONG = 60.0


def _count(stop: int) -> Iterator[int]:
    yield from range(stop)


def _tell_process() -> Iterator[int]:
    yield os.getpid()


def _wait_behind_first() -> Iterator[str]:
    yield "first"
    time.sleep(_LONG)
    yield "last"


def _tell_and_wait(done: Path) -> Iterator[int]:
    yield os.getpid()
    time.sleep(_LONG)
    done.touch()


def _fail_behind(count: int) -> Iterator[int]:
    yield from range(count)
    raise InputError(f"behind {count}")


def _print_between() -> Iterator[int]:
    yield 1
    sys.stdout.write("a word")
    yield 2


def _exit_behind_one() -> Iterator[int]:
    yield 1
    os._exit(3)
