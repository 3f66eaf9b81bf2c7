"""The grid of proposals: every row in its place, by a loop over the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.grading.cells import Cell, read_admitted, read_cells
from draftlab.grading.folds import fold_by_prompt
from draftlab.grading.grid import make_grid
from draftlab.log.reader import open_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

K = 3


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    """Whole, trimmed and partly excluded proposals of three prompts."""
    labels: list[list[Any]] = [
        [True, False, None],
        [True, True, True],
        [False, None, None],
        [True, True, False],
    ]
    rows = [
        proposal(step, given, request=step % 3, entropy=np.arange(K) + 10.0 * step)
        for step, given in enumerate(labels)
    ]
    rows.append(proposal(4, [True], request=1, entropy=np.array([40.0])))
    excluded = proposal(5, [True, True, True], request=2, excluded=[0, 4, 0])
    rows.append(excluded | {"entropy": np.arange(K) + 50.0})
    log = write_log(tmp_path, rows, num_speculative_tokens=K)
    [cell] = read_cells(open_log(log), ["entropy"])
    return cell


def test_rows_lie_where_a_loop_puts_them(cell: Cell) -> None:
    frame = read_admitted(cell, ["entropy"])
    fold_of_prompt = np.array([1, -1, 0])[: len(cell.prompts)]
    grid = make_grid(cell, frame, fold_of_prompt)
    proposals: list[list[dict[str, Any]]] = []
    for row in frame.iter_rows(named=True):
        if row["position"] == 0:
            proposals.append([])
        proposals[-1].append(row)
    assert (len(grid), grid.num_positions) == (len(proposals), K) == (6, 3)
    values = grid.spread(frame["entropy"].to_numpy())
    for index, rows in enumerate(proposals):
        for position in range(K):
            absent = {"survived": False, "entropy": np.nan}
            expected = rows[position] if position < len(rows) else absent
            assert grid.survived[index, position] == expected["survived"]
            np.testing.assert_equal(values[index, position], expected["entropy"])
        assert grid.num_survived[index] == sum(bool(row["survived"]) for row in rows)
        assert grid.fold[index] == fold_of_prompt[rows[0]["prompt"]]
        assert cell.datasets[grid.dataset[index]] == cell.datasets[rows[0]["dataset"]]
    # the fifth was sent in part, of the sixth only the row before the excluded one counts
    assert np.isnan(values[4:]).sum(axis=1).tolist() == [2, 2]


def test_group_codes_tell_run_and_prompt_apart(cell: Cell) -> None:
    pairs = [(run, prompt) for run in range(4) for prompt in range(len(cell.prompts))]
    frame = pl.DataFrame(pairs, schema={"run": pl.Int32, "prompt": pl.Int32}, orient="row")
    codes = cell.group_codes(frame)
    assert codes.dtype == np.int64
    assert len(np.unique(codes)) == len(pairs)
    assert [tuple(divmod(code, len(cell.prompts))) for code in codes.tolist()] == pairs


def test_an_empty_frame_is_an_empty_grid(cell: Cell) -> None:
    frame = read_admitted(cell, ["entropy"]).clear()
    grid = make_grid(cell, frame, np.zeros(len(cell.prompts), dtype=np.int64))
    assert (len(grid), grid.num_positions) == (0, K)
    assert grid.spread(np.empty(0)).shape == (0, K)


def test_the_fold_of_a_prompt_is_that_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    of_prompt = rng.integers(0, 5, 20)
    prompt = rng.choice(np.arange(1, 20, 2), 200)
    found = fold_by_prompt(prompt, of_prompt[prompt], 20)
    for code in range(20):
        assert found[code] == (of_prompt[code] if code in prompt else -1)
