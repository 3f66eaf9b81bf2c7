"""Features of cached logits: torch form against the engine's, the Triton kernel against torch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from draftlab.engine.stats import draft_features as engine_features
from draftlab.hooks.draft_columns import FEATURES, draft_features, reference
from draftlab.hooks.target_columns import judged_rows, target_columns

FLOAT32 = 1e-6
KERNEL = 3e-5
"""The kernel sums in float32 over the lanes of a block."""

needs_interpreter = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton's interpreter: make conformance",
)


def make_logits(slots: int, K: int, vocab: int, *, scale: float = 4.0) -> torch.Tensor:
    return scale * torch.randn(slots, K, vocab, generator=torch.Generator().manual_seed(0))


def edge_cases() -> torch.Tensor:
    """Return [1, 9, 6]: ties, masks, one-hot, huge, tiny, and rows that are not finite."""
    inf, nan = torch.inf, torch.nan
    rows = [
        [2.0, 1.0, 0.0, -inf, -inf, -inf],
        [3.0, 3.0, -inf, -inf, -inf, -inf],
        [7.0, -inf, -inf, -inf, -inf, -inf],
        [1e4, 0.0, -1e4, 5.0, 5.0, 5.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [60.0, 0.0, 1.0, 2.0, 3.0, -inf],
        [nan, 1.0, 2.0, 3.0, 4.0, 5.0],
        [1.0, inf, 2.0, 3.0, 4.0, 5.0],
        [-inf, -inf, -inf, -inf, -inf, -inf],
    ]
    return torch.tensor([rows])


def run(
    function: Any, logits: torch.Tensor, slots: Any, temperature: Any, tokens: Any, **options: Any
) -> np.ndarray:
    out = torch.full((len(slots), logits.shape[1], len(FEATURES) + 1), 7.0)
    function(
        logits, torch.tensor(slots), torch.tensor(temperature), torch.tensor(tokens), out, **options
    )
    assert (out[..., -1] == 7).all(), "columns of others are left alone"
    return out[..., :-1].numpy()


def test_the_torch_form_equals_that_of_the_engine() -> None:
    logits, K = make_logits(5, 3, 50), 3
    slots, temperature = [4, 0, 2], [1.0, 0.5, 0.0, 1.0, 1.7]
    tokens = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    found = run(draft_features, logits, slots, temperature, tokens)
    for i, slot in enumerate(slots):
        wanted = engine_features(
            logits[slot], torch.full((K,), temperature[slot]), torch.tensor(tokens[i])
        )
        for c, name in enumerate(FEATURES):
            np.testing.assert_allclose(found[i, :, c], wanted[name], rtol=FLOAT32, atol=FLOAT32)


def test_edges_are_those_of_the_published_cases() -> None:
    tokens = [[0, 0, 0, 0, 0, 0, 0, 0, 0]]
    qmax, margin, entropy, drawn = np.moveaxis(
        run(draft_features, edge_cases(), [0], [0.0], tokens)[0], -1, 0
    )
    np.testing.assert_allclose(qmax[:2], [0.68674, 0.0], atol=1e-5)
    np.testing.assert_allclose(entropy[:3], [0.83240, 0.69315, 0.0], atol=1e-5)
    assert margin[:3].tolist() == [1.0, 0.0, np.inf]
    assert qmax[2] == drawn[2] == np.inf
    assert np.isnan(np.stack((qmax, margin, entropy, drawn))[:, 6:]).all()


def test_no_token_means_no_log_odds_of_it() -> None:
    found = run(draft_features, make_logits(1, 2, 9), [0], [1.0], [[3, -1]])
    assert np.isfinite(found[0, :, :3]).all()
    assert np.isnan(found[0, :, 3]).tolist() == [False, True]


def test_rows_are_the_same_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (make_logits(3, 4, 40), [2, 1], [1.0, 0.3, 2.0], [[0, 1, 2, 3], [4, 5, 6, 7]])
    whole = run(reference, *arguments)
    monkeypatch.setattr("draftlab.hooks.draft_columns._CHUNK_VALUES", 100)
    np.testing.assert_array_equal(run(reference, *arguments), whole)


@needs_interpreter
@pytest.mark.parametrize("vocab", [6, 64, 200])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.3])
def test_the_kernel_equals_the_torch_form(vocab: int, temperature: float) -> None:
    from draftlab.hooks import kernel

    logits = make_logits(4, 3, vocab)
    tokens = torch.randint(0, vocab, (2, 3), generator=torch.Generator().manual_seed(1)).tolist()
    tokens[0][0] = int(logits[3, 0].argmax())
    tokens[1][2] = -1
    arguments = (logits, [3, 1], [temperature] * 4, tokens)
    found = run(kernel.launch, *arguments, block=64)
    np.testing.assert_allclose(found, run(reference, *arguments), rtol=KERNEL, atol=KERNEL)


@needs_interpreter
@pytest.mark.parametrize("block", [2, 8])
def test_the_kernel_meets_the_edges(block: int) -> None:
    """Also in blocks that hold nothing but masked tokens."""
    from draftlab.hooks import kernel

    arguments = (edge_cases(), [0], [0.0], [[0, 1, 0, 3, 5, 1, 0, 0, 0]])
    with np.errstate(all="ignore"):
        found = run(kernel.launch, *arguments, block=block)
    np.testing.assert_allclose(found, run(reference, *arguments), rtol=KERNEL, atol=KERNEL)


@needs_interpreter
def test_the_kernel_reads_bfloat16() -> None:
    from draftlab.hooks import kernel

    logits = make_logits(2, 2, 33).bfloat16()
    arguments = (logits, [1, 0], [0.7, 1.0], [[0, 1], [2, 3]])
    found = run(kernel.launch, *arguments, block=16)
    np.testing.assert_allclose(found, run(reference, *arguments), rtol=KERNEL, atol=KERNEL)


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
