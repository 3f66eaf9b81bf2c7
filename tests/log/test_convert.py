"""Foreign files made into a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from draftlab.errors import InputError
from draftlab.log.checks import run_checks
from draftlab.log.convert import convert
from draftlab.log.reader import open_log
from draftlab.log.summary import proposals

if TYPE_CHECKING:
    from pathlib import Path


def specspecs_files(folder: Path, acceptances: list[list[int]]) -> None:
    """Write one sequence with these proposals, as the recorder does."""
    pl.DataFrame(
        {"run_id": ["r"], "sequence_id": [4], "prompt_token_ids": [[1, 2, 3]], "prompt_len": [3]}
    ).write_parquet(folder / "sequences-0.parquet")
    n = len(acceptances)
    pl.DataFrame(
        {
            "run_id": ["r"] * n,
            "sequence_id": [4] * n,
            "step": range(n),
            "draft_tokens": [[9] * len(flags) for flags in acceptances],
            "acceptances": acceptances,
            "k": [len(flags) for flags in acceptances],
        }
    ).write_parquet(folder / "drafts-0.parquet")


def test_the_repeated_token_of_specspecs_is_no_draft(tmp_path: Path) -> None:
    """Specspecs: from the second step on, the first logged draft repeats the last token."""
    specspecs_files(tmp_path, [[1, 1, 0, 0], [1, 1, 1, 0]])
    [run] = convert(tmp_path, tmp_path / "log", drafting="greedy", temperature=0.0)
    log = open_log(run)
    rows = log.drafts.sort("step", "position").collect()
    assert rows["accepted"].to_list() == [True, True, False, None, True, True, False]
    assert proposals(log).sort("step").collect()["num_accepted"].to_list() == [2, 2]
    assert run_checks(log) == []


def test_foreign_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no sequences-"):
        convert(tmp_path, tmp_path / "log", drafting="greedy", temperature=0.0)
    with pytest.raises(InputError, match="unknown format"):
        convert(tmp_path, tmp_path / "log", source_format="nothing")
