"""Training a head, on hidden states whose acceptance probability is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from draftlab.engine import training
from draftlab.engine.confidence import ConfidenceHead
from draftlab.engine.training import _Examples, _Recipe, fit_head

N, HIDDEN, K = 3000, 6, 2
WEIGHT = np.array([1.0, -0.5, 0.0, 0.8, 0.0, 0.3])
BIAS = np.array([0.4, -0.6])


def examples(truth: str) -> tuple[_Examples, np.ndarray[Any, Any]]:
    """Return labelled states of 50 prompts, and their true log-odds."""
    rng = np.random.default_rng(4)
    hidden = rng.normal(0.5, [1, 2, 0.5, 1, 1, 3], (N, HIDDEN)).astype(np.float32)
    position = rng.integers(0, K, N)
    if truth == "linear":
        logit = hidden @ WEIGHT + BIAS[position]
    else:  # nothing that a line could follow
        logit = 3.0 * np.abs(hidden[:, 0] - 0.5) - 2.0
    overlap = expit(logit)
    made = _Examples(
        hidden=hidden,
        position=position,
        accepted=rng.random(N) < overlap,
        overlap=overlap,
        logit_qmax=logit + rng.normal(size=N),
        group=rng.integers(0, 50, N),
    )
    return made, logit


def train(
    given: _Examples, *, label: str = "overlap", mismatch_weight: float = 1.0, units: int = 0
) -> tuple[ConfidenceHead, dict[str, Any]]:
    recipe = _Recipe(label, mismatch_weight, units, seed=0)
    tensors, how = fit_head(given, given.group % 5 == 0, recipe)
    return ConfidenceHead(metadata={}, **tensors), how


def predict(head: ConfidenceHead, given: _Examples) -> np.ndarray[Any, Any]:
    every = head.logits(torch.from_numpy(given.hidden)[:, None].expand(-1, K, -1))
    return np.take_along_axis(every.double().numpy(), given.position[:, None], axis=1)[:, 0]


@pytest.fixture
def no_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the truth be reached: a ridge would hold the weights back."""
    monkeypatch.setattr(training, "PENALTIES", (1e4,))


def test_the_ridge_is_the_one_of_least_loss_held_out() -> None:
    given, _ = examples("linear")
    _, how = train(given)
    assert how["inverse_ridge"] == max(training.PENALTIES)  # exact labels: the least ridge is best


def test_a_linear_head_finds_the_true_weights_from_exact_labels(no_ridge: None) -> None:
    given, logit = examples("linear")
    head, how = train(given)
    assert head.inner_weight is None
    np.testing.assert_allclose(head.weight.numpy(), WEIGHT, atol=0.02)
    np.testing.assert_allclose(head.bias.numpy(), BIAS, atol=0.02)
    held_out = given.group % 5 == 0
    best = roc_auc_score(given.accepted[held_out], logit[held_out])
    assert how["held_out_auc"] == pytest.approx(best, abs=0.002)
    rival = roc_auc_score(given.accepted[held_out], given.logit_qmax[held_out])
    assert how["held_out_auc_logit_qmax"] == pytest.approx(rival)
    p = given.overlap
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    assert how["held_out_log_loss"] == pytest.approx(entropy[held_out].mean(), abs=0.002)


def test_accept_decisions_teach_the_same_with_more_noise(no_ridge: None) -> None:
    given, _ = examples("linear")
    head, _ = train(given, label="accepted")
    np.testing.assert_allclose(head.weight.numpy(), WEIGHT, atol=0.25)
    assert not np.allclose(head.weight.numpy(), WEIGHT, atol=0.005)


@pytest.mark.parametrize("weight", [6.0, 0.5])
def test_a_mismatch_weight_shifts_the_log_odds_by_its_logarithm(
    weight: float, no_ridge: None
) -> None:
    """With rejections counted w times, p becomes p / (p + w (1 - p))."""
    given, _ = examples("linear")
    fair, cautious = (train(given, mismatch_weight=w)[0] for w in (1.0, weight))
    np.testing.assert_allclose(cautious.weight.numpy(), fair.weight.numpy(), atol=0.03)
    shift = (cautious.bias - fair.bias).numpy()
    np.testing.assert_allclose(shift, -np.log(weight), atol=0.05)


@pytest.mark.slow
def test_hidden_units_follow_what_no_line_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BATCH", 64)  # as many steps as a longer run has
    given, logit = examples("bent")
    linear, of_linear = train(given)
    layers, of_layers = train(given, units=16)
    assert layers.inner_weight is not None
    assert tuple(layers.inner_weight.shape) == (16, HIDDEN)
    assert of_layers["held_out_log_loss"] < of_linear["held_out_log_loss"] - 0.1
    found = [np.corrcoef(predict(head, given), logit)[0, 1] for head in (linear, layers)]
    assert found[0] < 0.5 < 0.9 < found[1]


@pytest.mark.slow
def test_a_cautious_head_of_layers_predicts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BATCH", 64)
    given, _ = examples("bent")
    fair, cautious = (train(given, units=8, mismatch_weight=w)[0] for w in (1.0, 6.0))
    gap = predict(fair, given) - predict(cautious, given)
    assert gap.mean() == pytest.approx(np.log(6.0), abs=0.4)


@pytest.mark.slow
def test_the_seed_decides_and_leaves_that_of_the_process_alone() -> None:
    given, _ = examples("bent")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = (train(given, units=4)[0] for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), before)
