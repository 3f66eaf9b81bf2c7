"""Tables on a terminal: nothing is cut off, however narrow it is."""

from __future__ import annotations

import io

import polars as pl
import pytest
from rich.console import Console

from draftlab.reporting.console.text import print_table

TABLE = pl.DataFrame(
    {
        "pair": ["a drafter", "another drafter"],
        "lossless": [True, False],
        **{f"measure_{i}": [i + 0.25, -i - 0.5] for i in range(12)},
        "gain": [0.5, None],
        "gain_low": [0.25, None],
        "gain_high": [0.75, None],
        "n": [1234567, 8],
    }
)


def printed(table: pl.DataFrame, width: int) -> str:
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 120, 400])
def test_every_number_is_whole_at_any_width(width: int) -> None:
    text = printed(TABLE, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    for wanted in ("1,234,567", "11.2500", "-11.5000", "[0.2500, 0.7500]"):
        assert wanted in text, wanted


def test_blocks_repeat_the_columns_that_name_a_row() -> None:
    assert printed(TABLE, 400).count("another drafter") == 1
    assert printed(TABLE, 60).count("another drafter") > 1


def test_an_interval_stands_beside_its_estimate() -> None:
    lines = printed(TABLE, 50).splitlines()
    [line] = [line for line in lines if "[0.2500, 0.7500]" in line]
    assert "0.5000" in line.split("[")[0]


def test_an_empty_table_prints_its_titles() -> None:
    assert "measure" in printed(TABLE.clear(), 200)
