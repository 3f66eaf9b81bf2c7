"""The test of an engine's samples: its level, its power, and that it catches wrong engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab.studies.audit.conformity import (
    audit_engine,
    check_samples,
    compare_samples,
    needed_samples,
    sample_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def sampler(p: Any, seed: int) -> Callable[[int], list[int]]:
    rng = np.random.default_rng(seed)
    return lambda n: rng.choice(len(p), size=n, p=p).tolist()


P = np.arange(1, 21) / np.arange(1, 21).sum()
EXACT = dict(enumerate(P.tolist()))


def worst(tv: float) -> Any:
    """Return an alternative of this total variation that chi-square finds hardest.

    d proportional to p over halves of equal mass makes sum d^2 / p = 4 tv^2, the least possible.
    """
    half = np.cumsum(P) <= 0.5
    low, high = P[half].sum(), P[~half].sum()
    return np.where(half, P * (1 + tv / low), P * (1 - tv / high))


def test_power_is_at_least_the_stated_one() -> None:
    """400 runs at power 0.9 and the worst alternative: 360 expected, sd 6."""
    options: dict[str, Any] = {"tv": 0.1, "power": 0.9, "alpha": 1e-3}
    wrong = worst(0.1)
    assert np.abs(wrong - P).sum() / 2 == pytest.approx(0.1)
    caught = [
        audit_engine(sampler(wrong, seed), EXACT, **options).passed is False for seed in range(400)
    ]
    assert 0.85 < np.mean(caught) < 0.97


def test_a_right_engine_passes() -> None:
    verdicts = [audit_engine(sampler(P, seed), EXACT, alpha=1e-3) for seed in range(300)]
    assert sum(v.passed is not True for v in verdicts) <= 3
    assert np.mean([v.total_variation for v in verdicts]) == pytest.approx(
        np.mean([v.noise for v in verdicts]), rel=0.05
    )


def test_samples_needed_follow_from_the_power() -> None:
    # one degree of freedom: (z_alpha/2 + z_power)^2 / (4 tv^2) = (3.2905 + 1.2816)^2 / 0.09
    assert sample_size(2, tv=0.15, power=0.9, alpha=1e-3) == pytest.approx(232.3, abs=1)
    assert sample_size(2, tv=0.075) == pytest.approx(4 * sample_size(2, tv=0.15), abs=4)
    assert sample_size(50, power=0.99) > sample_size(50, power=0.9) > sample_size(10, power=0.9)
    n, cells = needed_samples([0.5, 0.5 - 1e-9, 1e-9])
    assert (n, cells) == (500, 3)


def test_an_impossible_outcome_is_an_error_at_once() -> None:
    found = check_samples([0, 1, 2], {0: 0.5, 1: 0.5, 2: 0.0})
    assert (found.passed, found.p_value) == (False, 0.0)
    assert check_samples([0, 1, "x"], {0: 0.5, 1: 0.5}).passed is False


def test_too_few_samples_decide_nothing() -> None:
    found = check_samples([0, 1], {0: 0.5, 1: 0.5})
    assert found.passed is None
    assert found.sentence.startswith("undecided: 2 samples of the")
    assert check_samples([], {0: 0.5, 1: 0.5}).passed is None
    slow = audit_engine(sampler(P, 0), EXACT, seconds=0.0, at_once=10)
    assert (slow.n, slow.passed) == (10, None)


def test_two_samples_are_compared() -> None:
    same = compare_samples(sampler(P, 0)(6000), sampler(P, 1)(6000))
    assert same.passed is True
    other = compare_samples(sampler(worst(0.15), 0)(6000), sampler(P, 1)(6000))
    assert other.passed is False
    assert other.total_variation == pytest.approx(0.15, abs=0.03)
    assert compare_samples([0, 1], [1, 0]).passed is None
    assert compare_samples([], []).passed is None


torch = pytest.importorskip("torch")

from tests.engine.mutants import MUTANTS  # noqa: E402 - needs torch


def engine_sampler(seed: int = 11) -> Callable[[int], list[tuple[int, ...]]]:
    """Return the reference engine on a tiny model as a sampler of three tokens."""
    from draftlab.engine.decode import Request
    from tests.engine.models import make_decoder, run, tiny_model

    decoder = make_decoder(tiny_model(3), slots=500, context=16, seed=seed)
    made = 0

    def sample(n: int) -> list[tuple[int, ...]]:
        nonlocal made
        requests = [Request(made + i, (1, 4, 2), 1.0, max_new_tokens=3) for i in range(n)]
        made += n
        return list(run(decoder, requests)[0].values())

    return sample


def exact_outputs() -> dict[tuple[int, ...], float]:
    from tests.engine.models import continuation_probabilities, tiny_model, truncation

    return continuation_probabilities(tiny_model(3), (1, 4, 2), 3, truncation(1.0))


STATED: dict[str, Any] = {"tv": 0.05, "power": 0.9, "alpha": 1e-4}


@pytest.mark.slow
def test_the_reference_engine_passes() -> None:
    found = audit_engine(engine_sampler(), exact_outputs(), **STATED)
    assert found.passed is True
    assert found.n == found.needed


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTANTS)
def test_wrong_engines_are_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    found = audit_engine(engine_sampler(), exact_outputs(), **STATED)
    assert found.passed is False, found
