"""Array helpers of the metrics: checked rows, sums by code, division that knows undefined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import BoolArray, FloatArray


def divide(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    """Divide elementwise; NaN where the denominator is 0: undefined is never a number."""
    below = np.asarray(denominator, dtype=np.float64)
    above = np.asarray(numerator, dtype=np.float64)
    out = np.full(np.broadcast_shapes(above.shape, below.shape), np.nan)
    np.divide(above, below, out=out, where=below != 0)
    return out


def correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's correlation; NaN where either is constant or there are under two values.

    Examples
    --------
    >>> correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (x, y))
    if len(a) < 2:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    # sums, not a BLAS product: its threads would meet those of run_threads
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else float("nan")


def sum_by(index: np.ndarray[Any, Any], values: FloatArray, size: int) -> FloatArray:
    """Sum the values of each index in [0, size)."""
    return np.asarray(np.bincount(index, values, size), dtype=np.float64)


def check_rows(y: npt.ArrayLike, values: npt.ArrayLike, name: str) -> tuple[BoolArray, FloatArray]:
    """Return labels as bool and values as float64, or say what is wrong with them."""
    label = np.asarray(y)
    numbers = np.asarray(values, dtype=np.float64)
    if label.ndim != 1 or label.shape != numbers.shape:
        raise ValueError(
            f"y and {name} must share one shape (n,), got {label.shape} and {numbers.shape}"
        )
    if label.dtype != np.bool_:
        if not np.isin(label, (0, 1)).all():
            raise ValueError("y must hold only 0 and 1 (drop unobserved rows first)")
        label = label.astype(np.bool_)
    num_nan = int(np.count_nonzero(np.isnan(numbers)))
    if num_nan:
        raise ValueError(f"{name} holds {num_nan} NaN of {len(numbers)} values")
    return label, numbers


def check_prob(y: npt.ArrayLike, prob: npt.ArrayLike) -> tuple[BoolArray, FloatArray]:
    """Return labels as bool and probabilities as float64, or say what is wrong with them."""
    label, values = check_rows(y, prob, "prob")
    outside = values[(values < 0) | (values > 1)]
    if len(outside):
        raise ValueError(
            f"prob must lie in [0, 1], got {len(outside)} outside, such as {outside[0]}; "
            "log-odds go to log_loss and auc"
        )
    return label, values


def mean(values: FloatArray) -> float:
    """Return the mean; NaN of no values."""
    return float(values.mean()) if len(values) else float("nan")
