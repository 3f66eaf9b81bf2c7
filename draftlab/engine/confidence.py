"""A trained confidence head: a linear probe on the drafter's last hidden state.

DSpark (arXiv 2607.05147) and SpecDec++ (arXiv 2405.19715) train such heads. The hidden state at a
position is what its q is made of, so the head's output is known before the draw.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftlab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SHIPPED = Path(__file__).parent / "heads"
"""Heads that come with the package, one per pair."""


@dataclass(frozen=True)
class ConfidenceHead:
    """Log-odds of conditional acceptance: weight . hidden + bias[position]."""

    weight: Tensor
    """[hidden] float32."""
    bias: Tensor
    """[K] float32; deeper positions take the last one."""
    metadata: dict[str, Any]
    """Pair, what it was trained on, and how it did on held-out prompts."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The part of the metadata that a run records."""
        return {key: self.metadata[key] for key in ("pair", "label", "temperature", "provenance")}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return log-odds [rows, K] of hidden states [rows, K, hidden]."""
        positions = torch.arange(hidden.shape[1]).clamp(max=len(self.bias) - 1)
        weight, bias = self.weight.to(hidden.device), self.bias[positions].to(hidden.device)
        return hidden.float() @ weight + bias


def save_head(head: ConfidenceHead, path: Path) -> None:
    """Write a head as safetensors, its metadata in the header."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"weight": head.weight.contiguous(), "bias": head.bias.contiguous()}
    save_file(tensors, path, {"draftlab": json.dumps(head.metadata)})


def load_head(path: str | Path) -> ConfidenceHead:
    """Read a head.

    Raises
    ------
    InputError
        The file is missing or is no head.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            metadata = json.loads(file.metadata()["draftlab"])
            return ConfidenceHead(file.get_tensor("weight"), file.get_tensor("bias"), metadata)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not a confidence head: {error}") from error


def find_shipped_head(pair: str) -> ConfidenceHead | None:
    """Return the head that comes with the package for this pair, if there is one."""
    for path in sorted(SHIPPED.glob("*.safetensors")):
        head = load_head(path)
        if head.metadata["pair"] == pair:
            return head
    return None
