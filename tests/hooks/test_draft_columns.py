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
from draftlab.hooks.plan import Facts

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


def test_the_drawn_tokens_chance_is_looked_up_in_the_targets_vocabulary() -> None:
    """Drafter ids 0, 1, 2 are target tokens 0, 5, 7; vLLM scatters the logits before sampling."""
    logits = torch.full((1, 1, 8), -torch.inf)
    logits[0, 0, [0, 5, 7]] = torch.tensor([0.2, 0.5, 0.3]).log()
    assert hook_features(logits, token=5)["logit_q_sampled"] == pytest.approx(0.0, abs=1e-6)
    assert hook_features(logits, token=7)["logit_q_sampled"] == pytest.approx(np.log(0.3 / 0.7))
    assert hook_features(logits, token=1)["logit_q_sampled"] == -np.inf


def test_features_are_of_the_distribution_that_chose_the_token() -> None:
    """TorchSpec #177: the unary head gave A 0.6, the selector chose B with 0.7."""
    selector = torch.tensor([0.3, 0.7]).log()[None, None]
    found = hook_features(selector, token=1)
    assert found["logit_qmax"] == found["logit_q_sampled"] == pytest.approx(np.log(0.7 / 0.3))
    assert Facts("DFlash2Speculator", "probabilistic").source == "candidates"
    assert Facts("EagleSpeculator", "probabilistic").source == "head"


def hook_features(logits: Any, *, token: int) -> dict[str, float]:
    """Return the features of one row as the vLLM hook computes them."""
    out = torch.empty(1, 1, len(FEATURES))
    draft_features(logits, torch.tensor([0]), torch.ones(1), torch.tensor([[token]]), out)
    return dict(zip(FEATURES, out.flatten().tolist(), strict=True))
