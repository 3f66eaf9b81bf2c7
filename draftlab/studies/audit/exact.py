"""Exact output distributions of speculative decoding under a budget policy, by enumeration.

Everything is generic over numbers: `fractions.Fraction` gives proofs, float64 gives
measurements. A toy of two requests, two tokens and two draft positions has 16 outcomes of
drafting, so that what a policy leaks shows as an exact total variation from the target.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Number = Fraction | float
    Distribution = Sequence[Number]
    Prefix = tuple[int, ...]
    Lengths = Callable[[list[list[Number]]], list[int]]
    """Survivals [requests][K] of a step to admitted drafts by request."""

LARGEST = 100_000
"""Outcomes of drafting that are enumerated at most."""


def fractions(*values: float | str) -> tuple[Fraction, ...]:
    """Return decimals as exact fractions.

    Examples
    --------
    >>> fractions(0.7, "1/3")
    (Fraction(7, 10), Fraction(1, 3))
    """
    return tuple(Fraction(str(value)) for value in values)


def residual(p: Distribution, q: Distribution) -> list[Number]:
    """Return what a rejected draft is resampled from: max(p - q, 0), normalised."""
    excess = [max(a - b, a * 0) for a, b in zip(p, q, strict=True)]
    total = sum(excess)
    return [e / total for e in excess] if total > 0 else list(p)


def output_distribution(p: Distribution, q: Distribution, admitted: Sequence[bool]) -> list[Number]:
    """Return the distribution of the token that comes out where the drawn token decides.

    A drawn token x that is admitted is verified (accepted with min(1, p/q), else resampled
    from the residual); one that is not is dropped, and the target's own token comes out.

    Parameters
    ----------
    p, q : V numbers
        Target and draft distribution.
    admitted : V bools
        Whether the draft is verified if token x was drawn. All equal: the rule does not read x.

    Returns
    -------
    V numbers
        Equal to p for every rule that does not read x.

    Examples
    --------
    The published two-token example: verify only where q of the drawn token is at least 0.5.

    >>> out = output_distribution(fractions(0.5, 0.5), fractions(0.2, 0.8), [False, True])
    >>> [float(x) for x in out]
    [0.4, 0.6]
    """
    out = [a * 0 for a in p]
    rejected, dropped = out[0], out[0]
    for x, (px, qx) in enumerate(zip(p, q, strict=True)):
        if admitted[x]:
            out[x] += min(px, qx)
            rejected += qx - min(px, qx)
        else:
            dropped += qx
    for x, left in enumerate(residual(p, q)):
        out[x] += rejected * left + dropped * p[x]
    return out


def total_variation(a: Distribution, b: Distribution) -> Number:
    """Return half the sum of absolute differences, in [0, 1].

    Examples
    --------
    >>> total_variation(fractions(0.4, 0.6), fractions(0.5, 0.5))
    Fraction(1, 10)
    """
    total: Any = sum(abs(x - y) for x, y in zip(a, b, strict=True))
    return total / 2  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Toy:
    """A request small enough to enumerate."""

    p: Callable[[Prefix], Distribution]
    """Target's next-token distribution behind a prefix of this step."""
    q: Callable[[Prefix], Distribution]
    """Drafter's."""
    survivals: Callable[[Prefix], list[Number]]
    """Predicted survival of each of the K drafts, once all are drawn."""
    num_drafts: int
    """K."""


def joint_error(requests: Sequence[Toy], lengths: Lengths) -> Number:
    """Return the total variation of the joint output of all requests from their targets.

    The output of a request are its first K + 1 tokens: those of the step, then plain decoding.
    Requests must come out independent of one another, too.

    Parameters
    ----------
    requests : sequence of Toy
    lengths : callable
        The policy.

    Returns
    -------
    Number
        0 exactly when the policy is lossless on this toy (with Fractions).
    """
    found: defaultdict[tuple[Prefix, ...], Number] = defaultdict(Fraction)
    drafts = [_drafts(request) for request in requests]
    count = 1
    for one in drafts:
        count *= len(one)
    if count > LARGEST:
        raise ValueError(f"{count} outcomes of drafting are too many to enumerate")
    for drawn in itertools.product(*drafts):
        chance = _product(probability for _, probability in drawn)
        survivals = [r.survivals(x) for r, (x, _) in zip(requests, drawn, strict=True)]
        admitted = lengths(survivals)
        outputs = [
            _outputs(r, x, n) for r, (x, _), n in zip(requests, drawn, admitted, strict=True)
        ]
        for tails in itertools.product(*(one.items() for one in outputs)):
            key = tuple(tail for tail, _ in tails)
            found[key] += chance * _product(probability for _, probability in tails)
    wanted = [_continue(r, {(): Fraction(1)}) for r in requests]
    keys = list(itertools.product(*wanted))
    exact = [_product(w[k] for w, k in zip(wanted, key, strict=True)) for key in keys]
    return total_variation([found[key] for key in keys], exact)


def _drafts(request: Toy) -> list[tuple[Prefix, Number]]:
    """Return every draft with its probability."""
    found: list[tuple[Prefix, Number]] = [((), Fraction(1))]
    for _ in range(request.num_drafts):
        found = [
            ((*prefix, x), chance * qx)
            for prefix, chance in found
            for x, qx in enumerate(request.q(prefix))
            if qx > 0
        ]
    return found


def _outputs(request: Toy, drawn: Prefix, admitted: int) -> dict[Prefix, Number]:
    """Return the output of a request whose drafts are drawn and partly admitted."""
    reached: Number = Fraction(1)
    out: defaultdict[Prefix, Number] = defaultdict(Fraction)
    for k in range(admitted):
        prefix, x = drawn[:k], drawn[k]
        p, q = request.p(prefix), request.q(prefix)
        accept = min(p[x] / q[x], 1)
        for y, left in enumerate(residual(p, q)):
            out[(*prefix, y)] += reached * (1 - accept) * left
        reached = reached * accept
    for y, py in enumerate(request.p(drawn[:admitted])):
        out[(*drawn[:admitted], y)] += reached * py
    return _continue(request, out)


def _continue(request: Toy, starts: Mapping[Prefix, Number]) -> dict[Prefix, Number]:
    """Continue by plain decoding to K + 1 tokens."""
    out: defaultdict[Prefix, Number] = defaultdict(Fraction)
    open_ends = list(starts.items())
    while open_ends:
        prefix, chance = open_ends.pop()
        if len(prefix) == request.num_drafts + 1:
            out[prefix] += chance
            continue
        open_ends += [((*prefix, y), chance * py) for y, py in enumerate(request.p(prefix))]
    return dict(out)


def _product(values: Any) -> Any:
    total: Any = Fraction(1)
    for value in values:
        total = total * value
    return total


def merge(budget: int, *, prefer_later: bool = False) -> Lengths:
    """Return the policy that admits a fixed number of drafts, those of highest survival.

    Ties go by position, then slot; with ``prefer_later`` the other way round, as an unstable
    top-k may.
    """
    return lambda survivals: _admit(survivals, budget, prefer_later=prefer_later)


def search(step_ms: Sequence[Number], *, early_stop: bool = False) -> Lengths:
    """Return the policy that searches the best budget on the survivals of the same step.

    With ``early_stop`` it ends at the first fall of the rate, so that whether a draft is
    admitted depends on better survivals alone (DSpark, algorithm 1).
    """

    def lengths(survivals: list[list[Number]]) -> list[int]:
        ordered = sorted((s for row in survivals for s in row), reverse=True)
        reached: Number = Fraction(len(survivals))
        best, best_rate = 0, reached / step_ms[0]
        last = best_rate
        for budget, survival in enumerate(ordered, start=1):
            reached = reached + survival
            rate = reached / step_ms[budget]
            if early_stop and rate < last:
                break
            last = rate
            if rate > best_rate or early_stop:
                best, best_rate = budget, rate
        return _admit(survivals, best)

    return lengths


def _admit(survivals: list[list[Number]], budget: int, *, prefer_later: bool = False) -> list[int]:
    sign = -1 if prefer_later else 1
    order = sorted(
        (-survival, sign * k, sign * r)
        for r, row in enumerate(survivals)
        for k, survival in enumerate(row)
    )
    lengths = [0] * len(survivals)
    for _, _, slot in order[:budget]:
        lengths[sign * slot] += 1
    return lengths


def products(conditionals: Sequence[Number]) -> list[Number]:
    """Return survivals: running products of conditional acceptance."""
    return list(itertools.accumulate(conditionals, lambda a, b: a * b))


def hybrid(
    before: Sequence[Number], after: Sequence[Number], *, running_minimum: bool = True
) -> list[Number]:
    """Return hybrid survivals: what was drawn counts for the positions before, not for one's own.

    Parameters
    ----------
    before : K numbers
        Conditional acceptance predicted before the draw.
    after : K numbers
        Predicted once the token is known.
    running_minimum : bool
        False: a survival may rise along the proposal, which lets a later draw overtake.

    Examples
    --------
    >>> hybrid(fractions(0.5, 0.8), fractions(0.9, 0.8), running_minimum=False)
    [Fraction(1, 2), Fraction(18, 25)]
    """
    reached = [Fraction(1), *products(after)[:-1]]
    survivals = [r * b for r, b in zip(reached, before, strict=True)]
    return list(itertools.accumulate(survivals, min)) if running_minimum else survivals


NOISE = {
    "independent": (0, 1, 2, 3, 4, 5),
    "reused_between_steps": (0, 1, 2, 0, 1, 2),
    "shared_by_drafting_and_recovery": (0, 1, 0, 3, 4, 3),
}
"""Uniforms that two steps use for drafting, acceptance and recovery: equal numbers are one."""


def noise_error(p: Distribution, q: Distribution, wiring: Sequence[int]) -> Number:
    """Return the total variation of two tokens, one draft each, from p x p under shared noise.

    The six uniforms are integrated exactly: the outcome is constant between the edges of the
    cumulative distributions and of the acceptance ratios.

    Parameters
    ----------
    p, q : V Fractions
    wiring : 6 ints
        As in `NOISE`.

    Examples
    --------
    >>> p, q = fractions(0.5, 0.3, 0.2), fractions(0.2, 0.2, 0.6)
    >>> noise_error(p, q, NOISE["independent"])
    Fraction(0, 1)
    """
    left = residual(p, q)
    ratios = sorted(min(a / b, 1) for a, b in zip(p, q, strict=True) if b > 0)
    edges: dict[int, set[Number]] = defaultdict(lambda: {Fraction(0), Fraction(1)})
    for use, variable in enumerate(wiring):
        own = (_edges(q), ratios, _edges(left))[use % 3]
        edges[variable].update(own)
    cells = {
        v: [((a + b) / 2, b - a) for a, b in itertools.pairwise(sorted(e)) if b > a]
        for v, e in edges.items()
    }
    found: defaultdict[Prefix, Number] = defaultdict(Fraction)
    for chosen in itertools.product(*cells.values()):
        noise = dict(zip(cells, chosen, strict=True))
        points = [noise[variable][0] for variable in wiring]
        chance = _product(width for _, width in chosen)
        tokens = (_draw_one(p, q, left, points[:3]), _draw_one(p, q, left, points[3:]))
        found[tokens] += chance
    keys = list(itertools.product(range(len(p)), repeat=2))
    return total_variation([found[key] for key in keys], [p[a] * p[b] for a, b in keys])


def _edges(probabilities: Distribution) -> list[Number]:
    return list(itertools.accumulate(probabilities))


def _draw_one(p: Distribution, q: Distribution, left: Distribution, noise: Sequence[Number]) -> int:
    """Return the token of a step with one draft, from uniforms for draft, verdict, recovery."""
    x = _invert(q, noise[0])
    return x if noise[1] * q[x] < p[x] else _invert(left, noise[2])


def _invert(probabilities: Distribution, uniform: Number) -> int:
    return next(x for x, edge in enumerate(_edges(probabilities)) if uniform < edge)
