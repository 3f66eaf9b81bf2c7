"""The decoder's output follows the target, whatever the drafter; and mutants are caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from draftlab.engine.decode import Request
from draftlab.schema import Excluded
from tests.engine.models import (
    continuation_probabilities,
    make_decoder,
    run,
    tiny_model,
    truncation,
)
from tests.engine.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.engine.decode import Columns, StepResult

SAMPLES = 10_000
# A right sampler falls below once in a million runs; the seeds are fixed, so it never will.
P_VALUE = 1e-6
PROMPT = (1, 4, 2)
LENGTH = 3


def output_p_value(
    temperature: float = 1.0,
    top_p: float = 1.0,
    *,
    greedy_drafting: bool = False,
    separate_drafter: bool = False,
    samples: int = SAMPLES,
) -> float:
    """Return the p-value of the decoder's 3-token outputs against their exact probabilities."""
    target = tiny_model(3)
    decoder = make_decoder(
        target,
        slots=2000,
        context=8,
        drafter=tiny_model(5, layers=1) if separate_drafter else None,
        greedy_drafting=greedy_drafting,
        seed=11,
    )
    requests = (
        Request(i, PROMPT, temperature, top_p=top_p, max_new_tokens=LENGTH) for i in range(samples)
    )
    outputs, _ = run(decoder, requests)
    assert len(outputs) == samples
    exact = continuation_probabilities(target, PROMPT, LENGTH, truncation(temperature, top_p=top_p))
    return fit_p_value(Counter(outputs.values()), exact)


def fit_p_value(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> float:
    """Return the chi-square p-value, rare outcomes pooled; 0 if an impossible one was seen."""
    n = counts.total()
    if any(exact[outcome] == 0 for outcome in counts):
        return 0.0
    often = [outcome for outcome, probability in exact.items() if n * probability >= 5]
    seen = [counts[outcome] for outcome in often]
    wanted = [n * exact[outcome] for outcome in often]
    rest = n - sum(wanted)
    if rest > 5:
        seen, wanted = [*seen, n - sum(seen)], [*wanted, rest]
    else:
        wanted = [w * sum(seen) / sum(wanted) for w in wanted]
    return float(stats.chisquare(seen, wanted).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("greedy_drafting", [False, True])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_output_distribution_is_the_targets(
    temperature: float, top_p: float, greedy_drafting: bool
) -> None:
    assert output_p_value(temperature, top_p, greedy_drafting=greedy_drafting) > P_VALUE


@pytest.mark.slow
def test_output_distribution_with_a_separate_drafter() -> None:
    assert output_p_value(separate_drafter=True) > P_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_wrong_sampler_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert output_p_value() < P_VALUE


def greedy_requests(count: int, length: int = 20) -> list[Request]:
    generator = np.random.default_rng(0)
    return [
        Request(i, tuple(generator.integers(0, 6, 1 + i % 5).tolist()), 0.0, max_new_tokens=length)
        for i in range(count)
    ]


@pytest.mark.parametrize("greedy_drafting", [False, True])
@pytest.mark.parametrize("separate_drafter", [False, True])
def test_greedy_speculation_equals_plain_greedy_decoding(
    greedy_drafting: bool, separate_drafter: bool
) -> None:
    target = tiny_model(7)
    plain, _ = run(make_decoder(target, slots=4, num_speculative_tokens=0), greedy_requests(9))
    decoder = make_decoder(
        target,
        slots=4,
        drafter=tiny_model(8, layers=1) if separate_drafter else None,
        num_speculative_tokens=4,
        greedy_drafting=greedy_drafting,
    )
    speculative, results = run(decoder, greedy_requests(9))
    assert speculative == plain
    accepted = sum(r.row["num_accepted"] for r in results)
    assert 0 < accepted < sum(r.row["num_admitted"] for r in results)


def test_bfloat16_departs_from_plain_decoding_only_at_near_ties() -> None:
    """Batched and single-token passes round differently; only a near tie may flip."""
    target = tiny_model(7, vocab=40).bfloat16()
    plain, _ = run(make_decoder(target, slots=4, num_speculative_tokens=0), greedy_requests(9))
    speculative, _ = run(
        make_decoder(target, slots=4, num_speculative_tokens=4), greedy_requests(9)
    )
    margins = []
    for request in greedy_requests(9):
        pairs = zip(plain[request.request], speculative[request.request], strict=True)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None:
            prefix = torch.tensor([(*request.prompt, *plain[request.request][:first])])
            hidden = target(
                prefix,
                torch.arange(prefix.shape[1])[None],
                target.new_cache(1, prefix.shape[1]),
                torch.tensor([0]),
            )
            top = target.head(hidden[0, -1]).double().topk(2).values
            margins.append(float(top[0] - top[1]))
    assert all(margin < 0.1 for margin in margins), margins


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_stream_does_not_depend_on_its_neighbours(temperature: float) -> None:
    target = tiny_model(2)
    requests = [
        replace(r, temperature=temperature, top_p=0.9) for r in greedy_requests(8, length=15)
    ]
    together, _ = run(make_decoder(target, slots=3), requests)
    for request in requests:
        alone, _ = run(make_decoder(target, slots=1), [request])
        assert alone == {request.request: together[request.request]}
        assert len(together[request.request]) == 15


def test_seeds_and_requests_have_their_own_noise() -> None:
    target = tiny_model(2)
    request = Request(0, (1, 2), 1.0, max_new_tokens=20)
    same = [run(make_decoder(target, seed=4), [request])[0] for _ in range(2)]
    assert same[0] == same[1]
    assert run(make_decoder(target, seed=5), [request])[0] != same[0]
    other = run(make_decoder(target, seed=4), [replace(request, request=1)])[0]
    assert other[1] != same[0][0]


def graded(results: list[StepResult]) -> Columns:
    parts = [r.drafts for r in results if r.drafts is not None]
    return {name: np.ma.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_labels_follow_the_first_rejection() -> None:
    decoder = make_decoder(tiny_model(3), slots=5, num_speculative_tokens=3)
    outputs, results = run(decoder, [replace(r, temperature=1.0) for r in greedy_requests(12)])
    columns = graded(results)
    accepted = columns["accepted"].reshape(-1, 3)
    for labels in accepted:
        seen = labels.compressed()
        assert seen[:-1].all()  # accepted up to the last observed one
        assert len(seen) == 3 or not seen[-1]  # nothing is observed behind a rejection
    assert (columns["verify_step"] == columns["step"] + 1).all()
    # Tokens come from the first token of each request, accepted drafts and one more a step.
    kept = accepted.filled(False) & (columns["excluded"].reshape(-1, 3) == 0)
    assert sum(r.row["num_emitted"] for r in results) == sum(map(len, outputs.values()))
    assert sum(r.row["num_accepted"] for r in results) == int(kept.sum())


def test_rows_behind_a_stop_token_are_marked() -> None:
    """Drafts [a, b, STOP, d, e], all accepted: three are emitted, two lie behind the stop."""
    target = tiny_model(22, vocab=40)
    free, _ = run(make_decoder(target, skip=(), num_speculative_tokens=5), greedy_requests(1))
    stop = free[0][3]  # drafts are output tokens 1..5, so the third draft stops
    assert stop not in free[0][:3]
    decoder = make_decoder(target, skip=(), num_speculative_tokens=5, stop_tokens=[stop])
    outputs, results = run(decoder, greedy_requests(1))
    columns = graded(results)
    assert outputs[0] == free[0][:4]
    assert columns["accepted"].tolist() == [True] * 5
    assert columns["excluded"].tolist() == [0, 0, 0, Excluded.AFTER_STOP, Excluded.AFTER_STOP]
    assert [r.row["num_emitted"] for r in results] == [1, 3, 0]
    assert [r.row["num_accepted"] for r in results] == [0, 3, 0]


def test_rows_behind_the_last_allowed_token_are_marked() -> None:
    decoder = make_decoder(tiny_model(7), skip=(), num_speculative_tokens=5)
    _, results = run(decoder, greedy_requests(1, length=3))
    assert graded(results)["excluded"].tolist() == [0, 0] + [Excluded.AFTER_STOP] * 3


def test_a_finished_request_is_replaced_at_once() -> None:
    decoder = make_decoder(tiny_model(7), slots=2, num_speculative_tokens=2)
    _, results = run(decoder, greedy_requests(8, length=5))
    started = np.cumsum([r.row["num_non_draft_tokens"] > r.row["num_requests"] for r in results])
    last_start = int(np.flatnonzero(np.diff(started, prepend=0))[-1])
    assert [r.row["num_requests"] for r in results[: last_start + 1]] == [2] * (last_start + 1)


def test_identity_drafter_is_always_accepted() -> None:
    decoder = make_decoder(tiny_model(7), slots=3, skip=(), num_speculative_tokens=4)
    _, results = run(decoder, [replace(r, temperature=0.8) for r in greedy_requests(6)])
    columns = graded(results)
    assert columns["accepted"].all()
    np.testing.assert_allclose(columns["overlap"], 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(columns["accept_prob"], 1.0, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_overlap_and_accept_prob_predict_the_labels() -> None:
    """Both are calibrated by construction; rows of one request are independent given them."""
    decoder = make_decoder(tiny_model(3), slots=50, num_speculative_tokens=3)
    requests = [replace(r, temperature=1.0) for r in greedy_requests(300)]
    columns = graded(run(decoder, requests)[1])
    observed = ~np.ma.getmaskarray(columns["accepted"]) & (columns["excluded"] == 0)
    labels = columns["accepted"].data[observed]
    for name in ("overlap", "accept_prob"):
        p = np.asarray(columns[name])[observed]
        z = (labels - p).sum() / np.sqrt((p * (1 - p)).sum())
        assert abs(z) < 4, (name, z)


def test_pending_drafts_carry_no_label() -> None:
    decoder = make_decoder(tiny_model(3), num_speculative_tokens=2)
    queue = iter(greedy_requests(1))
    decoder.step(lambda: next(queue, None))
    columns = decoder.pending_drafts()
    assert columns is not None
    assert columns["accepted"].mask.all()
    assert columns["verify_step"].mask.all()
    assert not columns["admitted"].any()
