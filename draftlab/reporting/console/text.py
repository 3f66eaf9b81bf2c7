"""Result tables as text, for a terminal."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from draftlab.reporting.labels import format_number

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console


def print_table(table: pl.DataFrame, console: Console) -> None:
    """Print a frame: text left, numbers right with four decimals, an interval in one column.

    Where the console is too narrow the columns go on below, the leading text columns repeated.
    """
    from rich.table import Table

    columns = _columns_of(table)
    keys = list(itertools.takewhile(lambda column: not column.right, columns))
    for group in _lines(keys, columns[len(keys) :], console.width):
        printed = Table(box=None, pad_edge=False)
        for column in group:
            printed.add_column(
                column.title, justify="right" if column.right else "left", min_width=column.width
            )
        for row in zip(*(column.cells for column in group), strict=True):
            printed.add_row(*row)
        console.print(printed)


class _Column(NamedTuple):
    title: str
    right: bool
    cells: list[str]

    @property
    def width(self) -> int:
        """Characters that it cannot do without: text may wrap, numbers may not."""
        longest = max((len(cell) for cell in self.cells), default=0)
        words = max(len(word) for word in self.title.split(" "))
        return max(words, longest if self.right else min(longest, _TEXT_WIDTH))


_TEXT_WIDTH = 24


def _columns_of(table: pl.DataFrame) -> list[_Column]:
    columns = []
    for name, dtype in table.schema.items():
        base = name.removesuffix("_low")
        if name.endswith("_high") and f"{name.removesuffix('_high')}_low" in table.columns:
            continue
        cells = [_text(value) for value in table[name]]
        if base != name and f"{base}_high" in table.columns:
            high = [_text(value) for value in table[f"{base}_high"]]
            cells = [f"[{a}, {b}]" for a, b in zip(cells, high, strict=True)]
            columns.append(_Column("95 %", True, cells))
        else:
            columns.append(_Column(name.replace("_", " "), dtype.is_numeric(), cells))
    return columns


def _lines(keys: list[_Column], rest: list[_Column], width: int) -> list[list[_Column]]:
    """Share the columns among blocks that fit, an interval with its estimate."""
    repeated = [
        column
        for column, end in zip(
            keys, itertools.accumulate(column.width + 2 for column in keys), strict=True
        )
        if column is keys[0] or end <= width / 3
    ]
    room = width - sum(column.width + 2 for column in repeated)
    blocks: list[list[_Column]] = [keys[len(repeated) :]]
    used = sum(column.width + 2 for column in blocks[0])
    for column, after in itertools.zip_longest(rest, rest[1:]):
        with_interval = after.width + 2 if after is not None and after.title == "95 %" else 0
        if blocks[-1] and used + column.width + 2 + with_interval > room and column.title != "95 %":
            blocks.append([])
            used = 0
        blocks[-1].append(column)
        used += column.width + 2
    return [[*repeated, *block] for block in blocks]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format_number(value)
