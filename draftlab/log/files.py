"""Atomic files: a reader sees the old content or the new one, never a part of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

TEMPORARY = ".tmp"
"""Suffix of a file that is being written; a reader ignores it, `inspect` names it."""


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` on a temporary name, bring it to the disk and rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + TEMPORARY)
    write(temporary)
    _fsync(temporary)
    temporary.replace(path)
    _fsync(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON (no NaN) atomically, keys in the given order."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, in UTF-8."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    replace_file(path, write)


def to_records(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for strict JSON: numbers that JSON lacks become None."""
    import polars as pl

    finite = pl.selectors.float().replace([float("nan"), float("inf"), float("-inf")], None)
    return table.with_columns(finite).to_dicts()


def shown_path(path: str) -> str:
    """Return a path as typed from the working folder; one that lies elsewhere without its place."""
    if "://" in path:
        return path
    elsewhere = Path(path).name if Path(path).is_file() else f"LOG/{Path(path).name}"
    return from_here(path) or elsewhere


def from_here(path: str) -> str | None:
    """Return a path relative to the working folder; None where it lies elsewhere."""
    try:
        return str(Path(path).absolute().relative_to(Path.cwd()))
    except ValueError:
        return None


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
