"""vLLM's verification budget: how many draft tokens a step verifies, and which.

The budget is the prefix of the sorted survivals that makes the most tokens per second: argmax
over B of (sampling requests + sum of the best B survivals) / step cost at B. It is then given
to the drafts of highest live survival, which are a prefix of every proposal because survivals
fall along it. Everything works on whole stacks of steps at once (leading axes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from draftlab._types import IntArray, RealArray


FLAT = 1e-3
"""Step costs that differ by a smaller share than this are one cost."""


class Plan(NamedTuple):
    """A budget for one step, and why."""

    budget: int
    """Draft tokens to verify."""
    reason: str
    """``search``, ``all`` (everything pays), ``none`` (nothing pays), ``cap``, ``flat table``
    (the cost says nothing, so everything is verified) or ``no drafts``."""
    tokens_per_ms: float
    """Expected, by the survivals given."""


def choose_budget(
    survivals: npt.ArrayLike,
    step_ms: npt.ArrayLike,
    *,
    num_sampling_requests: npt.ArrayLike,
    cap: int | None = None,
    min_gain: float = 0.0,
    early_stop: bool = False,
) -> IntArray:
    """Return the number of draft tokens that makes the most tokens per second (vLLM #47808).

    Parameters
    ----------
    survivals : (..., n) float
        Predicted survival of each scheduled draft, any order. In vLLM they are one step old, and
        1 for the drafts of a request that had none. NaN: not scheduled.
    step_ms : (n + 1,) or (..., n + 1) float
        Time of the whole step, drafting included, when it verifies 0..n drafts.
    num_sampling_requests : int or (...,) int
        Tokens that the step emits whatever the verdict: one a request that samples.
    cap : int, optional
        Most that the sampler's chunk allows.
    min_gain : float
        Trim only where the expected rate rises by this share over verifying everything
        (TensorRT-LLM: 0.01 or 0.04).
    early_stop : bool
        Stop at the first fall of the rate (DSpark, algorithm 1) instead of taking the best of all.

    Returns
    -------
    (...,) int64
        The smallest of equally good budgets.

    Examples
    --------
    >>> int(choose_budget([0.9, 0.1], [1.0, 1.2, 1.4], num_sampling_requests=1))
    1
    >>> int(choose_budget([0.9, 0.1], [1.0, 1.0, 1.0], num_sampling_requests=1))
    2
    """
    ordered = np.sort(_scheduled(survivals), axis=-1)[..., ::-1]
    return best_prefix(
        ordered,
        step_ms,
        num_sampling_requests=num_sampling_requests,
        cap=cap,
        min_gain=min_gain,
        early_stop=early_stop,
    )


def best_prefix(
    ordered: RealArray,
    step_ms: npt.ArrayLike,
    *,
    num_sampling_requests: npt.ArrayLike,
    cap: int | None = None,
    min_gain: float = 0.0,
    early_stop: bool = False,
) -> IntArray:
    """Return `choose_budget` of survivals that are sorted already, falling, -inf last."""
    rate = _rates(ordered, step_ms, num_sampling_requests)
    if cap is not None:
        rate = rate[..., : cap + 1]
    best = _first_fall(rate) if early_stop else np.argmax(rate, axis=-1)
    if min_gain > 0:
        everything = np.minimum(np.isfinite(ordered).sum(axis=-1), rate.shape[-1] - 1)
        full = np.take_along_axis(rate, everything[..., None], axis=-1)[..., 0]
        chosen = np.take_along_axis(rate, best[..., None], axis=-1)[..., 0]
        best = np.where(chosen >= full * (1 + min_gain), best, everything)
    return np.asarray(best, dtype=np.int64)


def plan_budget(
    survivals: npt.ArrayLike,
    step_ms: npt.ArrayLike,
    *,
    num_sampling_requests: int,
    cap: int | None = None,
    min_gain: float = 0.0,
) -> Plan:
    """Return the budget of one step with the reason; parameters as in `choose_budget`.

    Examples
    --------
    >>> plan_budget([0.9, 0.1], [1.0, 1.0, 1.0], num_sampling_requests=1)
    Plan(budget=2, reason='flat table', tokens_per_ms=2.0)
    """
    values, costs = np.asarray(survivals, dtype=np.float64), np.asarray(step_ms, dtype=np.float64)
    scheduled = int(np.count_nonzero(~np.isnan(values)))
    options = {"num_sampling_requests": num_sampling_requests, "min_gain": min_gain}
    budget = int(choose_budget(values, costs, cap=cap, **options))  # type: ignore[arg-type]
    best = np.sort(_scheduled(values))[::-1][:budget]
    rate = float((num_sampling_requests + best.sum()) / costs[budget])
    if scheduled == 0:
        return Plan(budget, "no drafts", rate)
    if is_flat(costs[: scheduled + 1]):
        return Plan(budget, "flat table", rate)
    if cap is not None and budget == cap < scheduled:
        return Plan(budget, "cap", rate)
    return Plan(budget, {0: "none", scheduled: "all"}.get(budget, "search"), rate)


def allocate(survivals: npt.ArrayLike, budget: npt.ArrayLike) -> IntArray:
    """Return how many drafts of each request are admitted when ``budget`` of all are.

    The drafts of highest survival are taken, wherever they are. Ties go by position, then by
    slot: a conditional prediction of exactly 1 ties a draft with the one behind it, and an order
    that preferred the latter would let a request's own later draws decide about x_k.

    Parameters
    ----------
    survivals : (..., R, K) float
        Live survivals, not rising along a proposal. NaN: not scheduled.
    budget : int or (...,) int
        At least 0; more than there is counts as all.

    Returns
    -------
    (..., R) int64

    Raises
    ------
    ValueError
        A survival rises along its proposal, or is scheduled behind one that is not: the choice
        would be no prefix, and what it reads of later draws would leak.

    Examples
    --------
    >>> allocate([[0.9, 0.8], [0.7, 0.1]], 3).tolist()
    [2, 1]
    >>> allocate([[1.0, 1.0], [1.0, 0.5]], 2).tolist()
    [1, 1]
    """
    values = _scheduled(survivals)
    if np.any(values[..., 1:] > values[..., :-1]):
        raise ValueError("survivals must not rise along a proposal: take their running minimum")
    flat = np.swapaxes(values, -1, -2).reshape(*values.shape[:-2], -1)
    admitted = top(flat, np.asarray(budget))
    by_position = admitted.reshape(*values.shape[:-2], values.shape[-1], values.shape[-2])
    return np.asarray(by_position.sum(axis=-2), dtype=np.int64)


def top(values: RealArray, budget: npt.ArrayLike) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which of (..., n) values are the ``budget`` largest; the first of equal ones.

    -inf is never chosen.

    Examples
    --------
    >>> top(np.array([0.5, 0.9, 0.5]), 2).tolist()
    [True, True, False]
    """
    n = values.shape[-1]
    if n == 0:
        return np.zeros(values.shape, dtype=np.bool_)
    rows = values.reshape(-1, n)
    wanted = np.broadcast_to(np.asarray(budget, dtype=np.int64), values.shape[:-1]).reshape(-1)
    wanted = np.clip(wanted, 0, n)
    # the smallest value that is chosen
    ordered = np.sort(rows, axis=-1)
    index = np.clip(n - wanted, 0, n - 1)[:, None]
    least = np.take_along_axis(ordered, index, axis=-1)
    below = np.take_along_axis(ordered, np.maximum(index - 1, 0), axis=-1)
    floor = np.where(wanted[:, None] > 0, np.maximum(least, np.finfo(rows.dtype).min), np.inf)
    chosen = rows >= floor
    # one more value at the level of the last one chosen: too many may be
    tied = np.flatnonzero((below == floor)[:, 0] & (wanted < n))
    if len(tied):
        surplus = np.count_nonzero(chosen[tied], axis=-1) - wanted[tied]
        level = rows[tied] == least[tied]
        place = np.cumsum(level, axis=-1, dtype=np.int32)
        chosen[tied] &= ~level | (place <= place[:, -1:] - surplus[:, None])
    return chosen.reshape(values.shape)


def is_flat(step_ms: npt.ArrayLike) -> bool:
    """Return whether costs differ by less than `FLAT`: a search over them verifies everything.

    Examples
    --------
    >>> is_flat([1.0, 1.0005]), is_flat([1.0, 1.1])
    (True, False)
    """
    costs = np.asarray(step_ms, dtype=np.float64)
    return bool(costs.max() <= costs.min() * (1 + FLAT))


def _scheduled(survivals: npt.ArrayLike) -> RealArray:
    """Return survivals with -inf for what is not scheduled; float32 stays as it is."""
    values = np.asarray(survivals)
    if values.dtype != np.float32:
        values = values.astype(np.float64)
    return np.where(np.isnan(values), -np.inf, values)


def _rates(
    ordered: RealArray, step_ms: npt.ArrayLike, num_sampling_requests: npt.ArrayLike
) -> RealArray:
    """Return expected tokens per ms at B = 0..n, -inf where B is more than is scheduled."""
    base = np.asarray(num_sampling_requests, dtype=np.float64)
    costs = np.asarray(step_ms, dtype=np.float64)
    rate = np.empty((*ordered.shape[:-1], ordered.shape[-1] + 1))
    rate[..., 0] = base
    np.cumsum(ordered, axis=-1, dtype=np.float64, out=rate[..., 1:])
    rate[..., 1:] += base[..., None]
    rate /= costs
    return rate


def _first_fall(rate: RealArray) -> IntArray:
    falls = np.diff(rate, axis=-1) < 0
    never = np.full(falls.shape[:-1], rate.shape[-1] - 1)
    return np.asarray(np.where(falls.any(axis=-1), falls.argmax(axis=-1), never))
