"""Does an engine sample from the target? A test whose sample size follows from its power.

For outcomes of probability p_i an alternative of total variation t has chi-square
noncentrality n sum d_i^2 / p_i >= 4 n t^2 (Cauchy-Schwarz), whatever its shape: that gives the
n at which every such engine is caught with the stated power.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, chndtr

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

ALPHA = 1e-3
POWER = 0.9
TOTAL_VARIATION = 0.15
LEAST_EXPECTED = 5.0
"""Outcomes expected less often are pooled, so that the chi-square approximation holds."""
_FIRST = 500
_LARGEST = 10_000_000


class SamplingTest(NamedTuple):
    """Verdict on an engine's samples."""

    passed: bool | None
    """None: too few samples for the stated power, and nothing found."""
    n: int
    needed: int
    """Samples at which a total variation of ``tv`` is found with the stated power."""
    num_cells: int
    """Outcomes told apart; rarer ones are pooled."""
    p_value: float
    """Of a right sampler; 0 if an impossible outcome was seen."""
    total_variation: float
    """Of the samples from the target, noise included."""
    noise: float
    """Total variation that a right sampler would show at this n."""
    sentence: str


@lru_cache
def sample_size(
    num_cells: int, *, tv: float = TOTAL_VARIATION, power: float = POWER, alpha: float = ALPHA
) -> int:
    """Return the samples that a chi-square test over so many outcomes needs.

    Parameters
    ----------
    num_cells : int
        At least 2.
    tv : float
        Smallest total variation that must be found.
    power : float
        Probability of finding it.
    alpha : float
        Probability of failing a right engine.

    Examples
    --------
    >>> sample_size(2, tv=0.15), sample_size(200, tv=0.15)
    (233, 1148)
    """
    df = num_cells - 1
    critical = chdtri(df, alpha)
    low, high = 0.0, 1.0
    while 1 - chndtr(critical, df, high) < power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 - chndtr(critical, df, middle) >= power else (middle, high)
    return int(np.ceil(high / (4 * tv**2)))


def needed_samples(probabilities: Iterable[float], **options: float) -> tuple[int, int]:
    """Return the samples needed for these outcomes, and how many of them stay told apart.

    More samples tell more outcomes apart, which needs more samples: the fixed point.
    """
    p = np.sort(np.fromiter(probabilities, dtype=np.float64))[::-1]
    n = _FIRST
    while True:
        cells = max(2, int(np.count_nonzero(p * n >= LEAST_EXPECTED)) + 1)
        wanted = sample_size(cells, **options)
        if wanted <= n or n >= _LARGEST:
            return n, cells
        n = wanted


def check_samples(
    samples: Iterable[Hashable],
    exact: Mapping[Any, float],
    *,
    tv: float = TOTAL_VARIATION,
    power: float = POWER,
    alpha: float = ALPHA,
) -> SamplingTest:
    """Test samples against the exact probability of every outcome.

    Parameters
    ----------
    samples : iterable of outcomes
        Such as token tuples of one length.
    exact : mapping
        Probability of every possible outcome; others are impossible.
    tv, power, alpha : float
        As in `sample_size`.

    Returns
    -------
    SamplingTest
    """
    counts = Counter(samples)
    n = counts.total()
    needed, _ = needed_samples(exact.values(), tv=tv, power=power, alpha=alpha)
    impossible = sum(c for outcome, c in counts.items() if not exact.get(outcome, 0.0) > 0)
    outcomes = [o for o, p in exact.items() if p > 0]
    p = np.array([exact[o] for o in outcomes])
    p /= p.sum()
    seen = np.array([counts[o] for o in outcomes], dtype=np.float64)
    distance = float(np.abs(seen / max(n, 1) - p).sum() / 2 + impossible / max(n, 1) / 2)
    noise = float(np.sqrt(2 * p * (1 - p) / (np.pi * max(n, 1))).sum() / 2)
    observed, expected = _pool(seen, n * p)
    p_value = 0.0 if impossible else _chi_square(observed, expected)
    passed = _verdict(p_value, alpha, n, needed)
    return SamplingTest(
        passed, n, needed, len(observed), p_value, distance, noise,
        _sentence(passed, n, needed, p_value, distance, noise, (tv, power)),
    )  # fmt: skip


def audit_engine(
    sample: Callable[[int], Iterable[Hashable]],
    exact: Mapping[Any, float],
    *,
    tv: float = TOTAL_VARIATION,
    power: float = POWER,
    alpha: float = ALPHA,
    seconds: float | None = None,
    at_once: int = 1000,
) -> SamplingTest:
    """Ask an engine for as many short generations as the power needs, and test them.

    Parameters
    ----------
    sample : callable
        Takes a number, returns that many independent outcomes.
    exact : mapping
        Probability of every possible outcome.
    tv, power, alpha : float
        As in `sample_size`.
    seconds : float, optional
        Stop asking after so long; the verdict is then None unless an error was found.
    at_once : int
        Outcomes asked for in one call.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = audit_engine(lambda n: rng.integers(0, 2, n).tolist(), {0: 0.5, 1: 0.5})
    >>> found.passed, found.n == found.needed
    (True, True)
    """
    needed, _ = needed_samples(exact.values(), tv=tv, power=power, alpha=alpha)
    started = time.monotonic()
    samples: list[Hashable] = []
    while len(samples) < needed:
        samples += sample(min(at_once, needed - len(samples)))
        if seconds is not None and time.monotonic() - started > seconds:
            break
    return check_samples(samples, exact, tv=tv, power=power, alpha=alpha)


def compare_samples(
    samples: Iterable[Hashable],
    reference: Iterable[Hashable],
    *,
    tv: float = TOTAL_VARIATION,
    power: float = POWER,
    alpha: float = ALPHA,
) -> SamplingTest:
    """Test an engine's samples against plain-sampled ones, where no exact probability is known.

    Both are noisy, so that each side needs twice the samples of `check_samples`; ``n`` is the
    smaller side.
    """
    ours, theirs = Counter(samples), Counter(reference)
    sizes = ours.total(), theirs.total()
    outcomes = list(ours | theirs)
    table = np.array([[c[o] for o in outcomes] for c in (ours, theirs)], dtype=np.float64)
    pooled = table.sum(axis=0) / max(sum(sizes), 1)
    least = min(sizes)
    needed, _ = needed_samples(pooled, tv=tv, power=power, alpha=alpha)
    needed *= 2
    often = least * pooled >= LEAST_EXPECTED
    cells = np.column_stack([table[:, often], table[:, ~often].sum(axis=1)])
    cells = cells[:, cells.sum(axis=0) > 0]
    shares = table / np.maximum(np.array(sizes, dtype=np.float64), 1)[:, None]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    spread = sum(1 / max(size, 1) for size in sizes)
    noise = float(np.sqrt(2 * pooled * (1 - pooled) * spread / np.pi).sum() / 2)
    p_value = _homogeneity(cells) if cells.shape[1] > 1 else 1.0
    passed = _verdict(p_value, alpha, least, needed)
    return SamplingTest(
        passed, least, needed, cells.shape[1], p_value, distance, noise,
        _sentence(passed, least, needed, p_value, distance, noise, (tv, power)),
    )  # fmt: skip


def _homogeneity(cells: Any) -> float:
    """Return the p-value of two samples' counts, (2, cells), Yates-corrected where it is 2 by 2."""
    from scipy.stats import chi2_contingency  # half a second that reports do without

    return float(chi2_contingency(cells).pvalue)


def _pool(seen: Any, expected: Any) -> tuple[Any, Any]:
    """Pool outcomes that are expected too rarely into one."""
    often = expected >= LEAST_EXPECTED
    rest = expected[~often].sum()
    observed, wanted = seen[often], expected[often]
    if rest > 0:
        observed = np.append(observed, seen[~often].sum())
        wanted = np.append(wanted, rest)
    return observed, wanted


def _chi_square(observed: Any, expected: Any) -> float:
    if len(observed) < 2:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chdtrc(len(observed) - 1, statistic))


def _verdict(p_value: float, alpha: float, n: int, needed: int) -> bool | None:
    if p_value < alpha:
        return False
    return True if n >= needed else None


def _sentence(
    passed: bool | None,
    n: int,
    needed: int,
    p_value: float,
    distance: float,
    noise: float,
    stated: tuple[float, float],
) -> str:
    found = f"total variation {distance:.3f} where noise alone shows {noise:.3f}"
    if passed is False:
        return f"does not sample from the target: {found}, p = {p_value:.1g} at {n:,} samples"
    if passed is None:
        return f"undecided: {n:,} samples of the {needed:,} needed; so far {found}"
    return (
        f"samples from the target as far as {n:,} samples tell ({found}, p = {p_value:.2f}); a "
        f"total variation of {stated[0]:g} would be found with probability {stated[1]:g}"
    )
