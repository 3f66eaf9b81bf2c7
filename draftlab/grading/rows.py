"""Labelled rows in one fixed order, and the scopes that they are graded in.

Rows stand by fold, position, dataset and group, so that every sum that a grade or a fit needs
runs over neighbours: one pass over memory, and no index array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from draftlab._types import BoolArray, FloatArray, IntArray


View = Literal["conditional", "survival"]


@dataclass(frozen=True)
class Scope:
    """A way to cut the rows: each (dataset, position) belongs to one entry, or to none."""

    name: str
    entry_of_cell: IntArray
    """(D * K,): entry of dataset d and position k at d * K + k; -1 is outside."""
    datasets: tuple[str | None, ...]
    """By entry; None is all."""
    positions: tuple[int | None, ...]

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def single_position(self) -> bool:
        """Whether no entry mixes positions."""
        return None not in self.positions

    def total(self, by_cell: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Add up (D * K, ...) sums to (entries, ...)."""
        inside = self.entry_of_cell >= 0
        out = np.zeros((len(self), *by_cell.shape[1:]), dtype=by_cell.dtype)
        np.add.at(out, self.entry_of_cell[inside], by_cell[inside])
        return out


class Units(NamedTuple):
    """Runs of neighbouring rows with one fold, position, dataset and group; (U,) int64 each."""

    start: IntArray
    n: IntArray
    accepted: IntArray
    fold: IntArray
    position: IntArray
    cell: IntArray
    """Dataset and position as d * K + k."""
    group: IntArray


class Clusters(NamedTuple):
    """The groups of each entry of a scope; a group that is in several entries counts in each."""

    cluster_of_unit: IntArray
    """(units inside,): cluster of each unit that the scope covers."""
    inside: BoolArray
    """(U,): units that the scope covers."""
    entry: IntArray
    """(C,): entry of each cluster."""
    fold: IntArray
    """(C,): fold of each cluster."""
    chances: IntArray
    """(units inside,): twice the pairs that the rows of the unit are in: with rows of the other
    class in the same entry and fold."""
    strata: IntArray
    """(entries,): folds that the entry has rows in."""

    def total(self, by_unit: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Add up (units inside,) sums to (C,)."""
        out = np.zeros(len(self.entry), dtype=by_unit.dtype)
        np.add.at(out, self.cluster_of_unit, by_unit)
        return out


@dataclass(frozen=True)
class GradedRows:
    """Labelled rows that every predictor is graded on; made by `arrange`, (n,) each.

    Codes are integers no wider than they need be: logs have millions of rows.
    """

    accepted: BoolArray
    position: IntArray
    dataset: IntArray
    """Codes of ``datasets``."""
    fold: IntArray
    """Fold in which the row is held out; all 0 in sample."""
    group: IntArray
    """Codes of (run, group): the unit of clusters."""
    datasets: tuple[str, ...]
    num_positions: int
    num_folds: int
    view: View = "conditional"
    """What ``accepted`` says: this token, given all before it, or everything up to it."""

    @property
    def num_cells(self) -> int:
        """Combinations of dataset and position, D * K."""
        return len(self.datasets) * self.num_positions

    @cached_property
    def cell(self) -> IntArray:
        """Dataset and position as one code, d * K + k."""
        return self.dataset.astype(np.int32) * self.num_positions + self.position

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The five scopes of the contract."""
        return make_scopes(self.datasets, self.num_positions)

    @cached_property
    def entries(self) -> dict[str, IntArray]:
        """Entry of each row, by scope, in small integers: they sort by radix."""
        by_scope: dict[str, IntArray] = {}
        for scope in self.scopes:
            small: type[np.signedinteger[Any]] = np.int8
            if len(scope) > np.iinfo(np.int8).max:
                small = np.int16 if len(scope) <= np.iinfo(np.int16).max else np.int32
            by_scope[scope.name] = scope.entry_of_cell.astype(small)[self.cell]
        return by_scope

    @cached_property
    def fold_slices(self) -> tuple[slice, ...]:
        """Rows of each fold."""
        bounds = np.searchsorted(self.fold, np.arange(self.num_folds + 1)).tolist()
        return tuple(slice(*pair) for pair in pairwise(bounds))

    @cached_property
    def fold_position_slices(self) -> tuple[tuple[slice, ...], ...]:
        """Rows of each fold and position."""
        code = self.fold.astype(np.int32) * self.num_positions + self.position
        bounds = np.searchsorted(code, np.arange(self.num_folds * self.num_positions + 1)).tolist()
        slices = [slice(*pair) for pair in pairwise(bounds)]
        K = self.num_positions
        return tuple(tuple(slices[f * K : (f + 1) * K]) for f in range(self.num_folds))

    @cached_property
    def counts(self) -> IntArray:
        """(D * K, F, 2): rejected and accepted rows of each cell and fold."""
        units = self.units
        out = np.zeros((self.num_cells * self.num_folds, 2), dtype=np.int64)
        by_class = np.stack([units.n - units.accepted, units.accepted], axis=1)
        np.add.at(out, units.cell * self.num_folds + units.fold, by_class)
        return out.reshape(self.num_cells, self.num_folds, 2)

    @cached_property
    def units(self) -> Units:
        """The smallest pieces that sums are kept of."""
        new = np.zeros(len(self.fold), dtype=np.bool_)
        new[:1] = True
        for code in (self.fold, self.position, self.dataset, self.group):
            new[1:] |= code[1:] != code[:-1]
        start = np.flatnonzero(new)
        return Units(
            start=start,
            n=np.diff(start, append=len(self.fold)),
            accepted=np.add.reduceat(self.accepted, start, dtype=np.int64),
            fold=self.fold[start].astype(np.int64),
            position=self.position[start].astype(np.int64),
            cell=self.cell[start].astype(np.int64),
            group=self.group[start].astype(np.int64),
        )

    @cached_property
    def clusters(self) -> dict[str, Clusters]:
        """Groups of each entry, by scope."""
        return {scope.name: _find_clusters(self, scope) for scope in self.scopes}

    @property
    def num_prompts(self) -> dict[str, IntArray]:
        """Distinct groups of each entry, by scope."""
        return {
            scope.name: np.bincount(self.clusters[scope.name].entry, minlength=len(scope))
            for scope in self.scopes
        }

    def sum_units(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Sum (n,) values over the rows of each unit."""
        return np.add.reduceat(values, self.units.start)


def arrange(
    *,
    accepted: BoolArray,
    position: IntArray,
    dataset: IntArray,
    fold: IntArray,
    group: IntArray,
    datasets: tuple[str, ...],
    num_positions: int,
    num_folds: int,
    view: View = "conditional",
) -> tuple[GradedRows, IntArray]:
    """Put rows into the order that `GradedRows` wants; parameters are its fields.

    Returns
    -------
    rows : GradedRows
    order : (n,) int64
        Index of each of its rows in the arrays given; equal keys keep their order.
    """
    size = int(group.max(initial=0)) + 1
    code = fold.astype(np.int64) * num_positions + position
    code = (code * max(len(datasets), 1) + dataset) * size + group
    order = stable_order(code)
    del code
    rows = GradedRows(
        accepted=accepted[order],
        position=_narrow(position)[order],
        dataset=_narrow(dataset)[order],
        fold=_narrow(fold)[order],
        group=_narrow(group)[order],
        datasets=datasets,
        num_positions=num_positions,
        num_folds=num_folds,
        view=view,
    )
    return rows, order


def _narrow(codes: IntArray) -> IntArray:
    most = int(codes.max(initial=0))
    for small in (np.int16, np.int32):
        if most <= np.iinfo(small).max:
            return codes.astype(small)
    return codes


def stable_order(code: IntArray) -> IntArray:
    """Return the order that sorts codes >= 0, equal ones in their order.

    Code and index are packed into one integer where they fit: numpy sorts integers by vector
    instructions, some ten times faster than it sorts an index.

    Examples
    --------
    >>> stable_order(np.array([2, 0, 2, 1])).tolist()
    [1, 3, 0, 2]
    """
    n = len(code)
    index_bits = n.bit_length()
    if n == 0 or int(code.max()).bit_length() + index_bits > 63:
        return np.argsort(code, kind="stable")
    packed = (code.astype(np.int64) << index_bits) | np.arange(n)
    packed.sort()
    return np.asarray(packed & ((1 << index_bits) - 1))


def order_of_values(values: FloatArray) -> IntArray:
    """Return the order that sorts finite floats; exact, and fast where float32 holds them.

    Most features are float32 columns of the log. The bits of a float32, with the sign turned
    into an order, are an integer.

    Examples
    --------
    >>> order_of_values(np.array([0.5, -1.0, 3.0, -2.0])).tolist()
    [3, 1, 0, 2]
    """
    small = values.astype(np.float32)
    if not np.array_equal(small, values):
        return np.argsort(values)
    bits = (small + np.float32(0.0)).view(np.int32).astype(np.int64)  # -0.0 becomes 0.0
    return stable_order(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits) + (1 << 31))


def make_scopes(datasets: tuple[str, ...], num_positions: int) -> tuple[Scope, ...]:
    """Return overall, without_first, position, dataset and dataset_position.

    Examples
    --------
    >>> [(scope.name, len(scope)) for scope in make_scopes(("a", "b"), 3)]
    [('overall', 1), ('without_first', 1), ('position', 3), ('dataset', 2), ('dataset_position', 6)]
    """
    names, K = datasets, num_positions
    dataset, position = np.divmod(np.arange(len(names) * K), K)
    each = tuple(range(K))
    return (
        Scope("overall", np.zeros_like(dataset), (None,), (None,)),
        Scope("without_first", np.where(position > 0, 0, -1), (None,), (None,)),
        Scope("position", position, (None,) * K, each),
        Scope("dataset", dataset, names, (None,) * len(names)),
        Scope(
            "dataset_position",
            dataset * K + position,
            tuple(name for name in names for _ in each),
            each * len(names),
        ),
    )


def _find_clusters(rows: GradedRows, scope: Scope) -> Clusters:
    units = rows.units
    entry = scope.entry_of_cell[units.cell]
    inside = entry >= 0
    code = units.group[inside] * len(scope) + entry[inside]
    distinct, first, cluster_of_unit = np.unique(code, return_index=True, return_inverse=True)
    counts = scope.total(rows.counts)[entry[inside], units.fold[inside]]
    accepted = units.accepted[inside]
    chances = accepted * counts[:, 0] + (units.n[inside] - accepted) * counts[:, 1]
    cluster_entry, fold = distinct % len(scope), units.fold[inside][first]
    strata = np.zeros((len(scope), rows.num_folds), dtype=np.bool_)
    strata[cluster_entry, fold] = True
    return Clusters(cluster_of_unit, inside, cluster_entry, fold, 2 * chances, strata.sum(axis=1))
