"""What a run of the command line brought, and edits of a log in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from pathlib import Path


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def part(log: Path) -> Path:
    [path] = log.glob("*/drafts/*.parquet")
    return path


def edit(log: Path, *expressions: pl.Expr) -> None:
    frame = pl.read_parquet(part(log)).with_columns(*expressions)
    frame.write_parquet(part(log))
