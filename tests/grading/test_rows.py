"""Arranged rows: their order against numpy's lexsort, their sums against loops over the rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftlab.grading.rows import arrange, make_scopes, order_of_values, stable_order
from tests.grading.rows import DATASETS, NUM_POSITIONS, make_rows


@given(st.lists(st.integers(0, 9), max_size=80))
def test_a_stable_order_is_numpys(codes: list[int]) -> None:
    code = np.array(codes, dtype=np.int64)
    np.testing.assert_array_equal(stable_order(code), np.argsort(code, kind="stable"))


def test_codes_too_large_to_carry_an_index_are_ordered_all_the_same() -> None:
    code = np.array([2**62, 5, 2**62, 0])
    assert stable_order(code).tolist() == [3, 1, 0, 2]


@given(st.lists(st.floats(-(2.0**90), 2.0**90, width=32), max_size=60))
def test_values_of_float32_are_ordered_by_their_bits(values: list[float]) -> None:
    found = np.array(values)[order_of_values(np.array(values))]
    np.testing.assert_array_equal(found, np.sort(values))


def test_values_that_float32_does_not_hold_are_ordered_exactly() -> None:
    values = 1 + np.array([3.0, 1.0, 2.0]) * 1e-12  # equal as float32
    assert order_of_values(values).tolist() == [1, 2, 0]
    assert order_of_values(np.array([0.0, -0.0, -1.0])).tolist() == [2, 0, 1]  # equal zeros


def test_rows_stand_by_fold_position_dataset_and_group() -> None:
    rng = np.random.default_rng(3)
    n = 500
    keys: dict[str, Any] = {
        "position": rng.integers(0, 4, n),
        "dataset": rng.integers(0, 2, n),
        "fold": rng.integers(0, 3, n),
        "group": rng.integers(0, 11, n),
    }
    accepted = rng.random(n) < 0.6
    rows, order = arrange(
        accepted=accepted, **keys, datasets=DATASETS, num_positions=4, num_folds=3
    )
    wanted = np.lexsort([keys[name] for name in ("group", "dataset", "position", "fold")])
    np.testing.assert_array_equal(order, wanted)
    np.testing.assert_array_equal(rows.accepted, accepted[wanted])
    for name, values in keys.items():
        np.testing.assert_array_equal(getattr(rows, name), values[wanted])
    for fold, parts in enumerate(rows.fold_position_slices):
        assert (rows.fold[rows.fold_slices[fold]] == fold).all()
        for position, part in enumerate(parts):
            inside = (rows.fold == fold) & (rows.position == position)
            np.testing.assert_array_equal(np.flatnonzero(inside), np.arange(n)[part])


def test_counts_and_units_are_those_of_the_rows_one_by_one() -> None:
    rows, feature = make_rows()
    counts: Counter[tuple[int, int, int]] = Counter()
    units: Counter[tuple[int, int, int, int]] = Counter()
    sums: Counter[tuple[int, int, int, int]] = Counter()
    for i in range(len(rows.fold)):
        key = (int(rows.fold[i]), int(rows.position[i]), int(rows.dataset[i]), int(rows.group[i]))
        counts[key[2] * NUM_POSITIONS + key[1], key[0], int(rows.accepted[i])] += 1
        units[key] += 1
        sums[key] += feature[i]
    for (cell, fold, label), count in counts.items():
        assert rows.counts[cell, fold, label] == count
    assert rows.counts.sum() == len(rows.fold)
    found = rows.units
    keys = zip(found.fold.tolist(), found.position.tolist(), (found.cell // NUM_POSITIONS).tolist(),
               found.group.tolist(), strict=True)  # fmt: skip
    names = list(keys)
    assert dict(zip(names, found.n.tolist(), strict=True)) == dict(units)
    wanted = [sums[name] for name in names]
    np.testing.assert_allclose(rows.sum_units(feature), wanted, atol=1e-12)


@pytest.mark.parametrize("scope", ["overall", "without_first", "position", "dataset_position"])
def test_pairs_of_clusters_are_counted_as_by_a_double_loop(scope: str) -> None:
    """A pair has an accepted and a rejected row of one entry and fold, and is seen by both."""
    rows, _ = make_rows(120)
    [chosen] = [s for s in rows.scopes if s.name == scope]
    entry = chosen.entry_of_cell[rows.cell]
    pairs: Counter[tuple[int, int]] = Counter()
    for i in range(len(entry)):
        for j in range(len(entry)):
            alike = entry[i] == entry[j] >= 0 and rows.fold[i] == rows.fold[j]
            if alike and rows.accepted[i] != rows.accepted[j]:
                pairs[int(entry[i]), int(rows.group[i])] += 2
    clusters = rows.clusters[scope]
    inside = rows.units
    group = np.zeros(len(clusters.entry), dtype=np.int64)
    group[clusters.cluster_of_unit] = inside.group[clusters.inside]
    found = zip(clusters.entry.tolist(), group.tolist(), clusters.total(clusters.chances).tolist(),
                strict=True)  # fmt: skip
    assert {(e, g): total for e, g, total in found if total} == dict(pairs)
    per_entry = [np.unique(rows.group[entry == e]).size for e in range(len(chosen))]
    assert rows.num_prompts[scope].tolist() == per_entry
    strata = [np.unique(rows.fold[entry == e]).size for e in range(len(chosen))]
    assert clusters.strata.tolist() == strata


def test_scopes_add_up_cells() -> None:
    by_cell = np.array([1, 10, 100, 1000, 10_000, 100_000])  # two datasets, three positions
    totals = {scope.name: scope.total(by_cell).tolist() for scope in make_scopes(DATASETS, 3)}
    assert totals == {
        "overall": [111_111],
        "without_first": [110_110],
        "position": [1_001, 10_010, 100_100],
        "dataset": [111, 111_000],
        "dataset_position": [1, 10, 100, 1000, 10_000, 100_000],
    }
    named = {scope.name: scope.single_position for scope in make_scopes(DATASETS, 3)}
    assert [name for name, alone in named.items() if alone] == ["position", "dataset_position"]
