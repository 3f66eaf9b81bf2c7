"""Overlap and acceptance probability of judged drafts, against sums in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax as scipy_softmax

from draftlab.hooks.target_columns import judged_rows, target_columns
from tests.hooks.test_draft_columns import make_logits

FLOAT32 = 1e-6


def softmax(z: torch.Tensor) -> torch.Tensor:
    return z.double().softmax(-1)


def test_overlap_and_acceptance_of_judged_rows() -> None:
    """Two requests with two and one drafts; each request's last row judges nothing."""
    draft, target = make_logits(3, 2, 8), make_logits(1, 5, 8)[0]
    slots, positions = torch.tensor([2, 2, 2, 0, 0]), torch.tensor([0, 1, 2, 0, 1])
    sampled = torch.tensor([5, 3, 4, 5, 6])
    out = torch.full((4, 2, 2), torch.nan)
    rows = judged_rows(sampled, slots, positions)
    target_columns(target[:-1], draft, *rows, torch.tensor([0.5, 1.0, 1.0]), out)
    cases = [(0, 2, 0, 3, 1.0), (1, 2, 1, 4, 1.0), (3, 0, 0, 6, 0.5)]
    for row, slot, k, token, tau in cases:
        p, q = softmax(target[row]), softmax(draft[slot, k] / tau)
        assert out[slot, k, 0] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)
        assert out[slot, k, 1] == pytest.approx(min(1.0, float(p[token] / q[token])), abs=1e-6)
    assert out[0, 1].isnan().all()
    assert out[1].isnan().all()


def test_a_draft_that_was_not_drawn_at_random_is_accepted_with_p() -> None:
    target = make_logits(1, 3, 8)[0]
    slots, positions, sampled = torch.tensor([0, 0, 0]), torch.arange(3), torch.tensor([1, 2, 3])
    rows = judged_rows(sampled, slots, positions)
    out = torch.full((2, 2, 2), torch.nan)
    target_columns(target[:-1], None, *rows, torch.tensor([1.0]), out)
    assert out[0, 0, 0] == out[0, 0, 1] == pytest.approx(float(softmax(target[0])[2]), abs=1e-6)
    target_columns(target[:-1], make_logits(1, 2, 8), *rows, torch.tensor([0.0]), out)
    assert out[0, :, 0].tolist() == [float(target[k].argmax() == k + 2) for k in range(2)]


def test_an_invalid_draft_has_no_acceptance_probability() -> None:
    """A grammar refused it: the target's rows behind it mean nothing."""
    slots, positions, sampled = torch.tensor([0, 0]), torch.arange(2), torch.tensor([1, -1])
    out = torch.full((2, 1, 2), torch.nan)
    rows = judged_rows(sampled, slots, positions)
    target_columns(make_logits(1, 1, 8)[0], None, *rows, torch.tensor([1.0]), out)
    assert out[0].isnan().all()


def test_a_batch_of_many_requests_equals_scipy_row_by_row_whatever_the_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three requests of up to three drafts, temperatures of their own, one of them greedy."""
    K, vocab, temperature = 3, 7, [0.7, 1.3, 0.0]
    draft, target = make_logits(3, K, vocab), make_logits(1, 9, vocab)[0]
    slots = torch.tensor([1, 1, 1, 1, 0, 0, 0, 2, 2])
    positions = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1])
    sampled = torch.tensor([9, 2, 6, 0, 9, 5, 5, 9, int(target[7].argmax())]) % vocab
    rows = judged_rows(sampled, slots, positions)
    found = []
    for values in (2**25, 2 * vocab):
        monkeypatch.setattr("draftlab.hooks.target_columns._CHUNK_VALUES", values)
        out = torch.full((4, K, 2), torch.nan)
        target_columns(target[:-1], draft, *rows, torch.tensor(temperature), out)
        found.append(out[:3].numpy())
    np.testing.assert_array_equal(found[0], found[1])
    wanted = np.full((3, K, 2), np.nan)
    for row in range(8):
        if positions[row + 1] != positions[row] + 1:
            continue
        slot, k, token = int(slots[row]), int(positions[row]), int(sampled[row + 1])
        p = scipy_softmax(target[row].double().numpy())
        if temperature[slot] == 0:
            wanted[slot, k] = float(p.argmax() == token)
            continue
        q = scipy_softmax(draft[slot, k].double().numpy() / temperature[slot])
        wanted[slot, k] = np.minimum(p, q).sum(), min(1.0, p[token] / q[token])
    np.testing.assert_allclose(found[0], wanted, atol=FLOAT32)


def test_a_row_judges_the_draft_behind_it_and_the_last_one_none() -> None:
    tokens, slots, positions = judged_rows(
        torch.tensor([4, 5, 6, 7, -1]),
        torch.tensor([3, 3, 1, 1, 1]),
        torch.tensor([0, 1, 0, 1, 2]),
    )
    assert tokens.tolist() == [5, 6, 7, -1]
    assert slots.tolist() == [3, -1, 1, -1]  # the end of a request, and an invalid draft
    assert positions.tolist() == [0, 1, 0, 1]
