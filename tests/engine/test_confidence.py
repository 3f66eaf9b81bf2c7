"""The head's formula, as it is written, and what a file keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import norm

from draftlab.engine.confidence import ConfidenceHead, load_head, save_head

if TYPE_CHECKING:
    from pathlib import Path


def test_a_head_with_units_is_the_written_formula(tmp_path: Path) -> None:
    """One hidden layer, by scipy's normal distribution; float16 on disk comes back."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (4,), "bias": (2,), "inner_weight": (4, 6), "inner_bias": (4,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors["inner_weight"] = tensors["inner_weight"].half()
    save_head(ConfidenceHead(metadata={}, **tensors), tmp_path / "head.safetensors")
    head = load_head(tmp_path / "head.safetensors")
    hidden = torch.randn(5, 3, 6, generator=generator)
    weight, bias, inner, inner_bias = (tensors[name].double().numpy() for name in shapes)
    x = hidden.double().numpy() @ inner.T + inner_bias
    wanted = (x * norm.cdf(x)) @ weight + bias[[0, 1, 1]]
    np.testing.assert_allclose(head.logits(hidden).numpy(), wanted, atol=1e-5)


def test_a_linear_head_is_a_dot_product_and_metadata_come_back(tmp_path: Path) -> None:
    """Behind its last bias, that of the last position holds."""
    head = ConfidenceHead(
        metadata={"pair": "T, skip {1}", "units": 0},
        weight=torch.tensor([2.0, -1.0]),
        bias=torch.tensor([0.5, -0.5]),
    )
    save_head(head, tmp_path / "head.safetensors")
    back = load_head(tmp_path / "head.safetensors")
    hidden = torch.tensor([[[1.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
    assert back.logits(hidden).tolist() == [[1.5, -2.5, 5.5]]
    assert back.metadata["pair"] == "T, skip {1}"
