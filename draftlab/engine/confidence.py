"""A trained confidence head on the drafter's last hidden state.

DSpark (arXiv 2607.05147) trains a linear probe, SpecDec++ (arXiv 2405.19715) a few layers. Here
it is linear, or has one hidden layer. The hidden state at a position is what its q is made of, so
the head's output is known before the draw.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from draftlab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

SHIPPED = Path(__file__).parent / "heads"
"""Heads that come with the package, one per pair."""


@dataclass(frozen=True)
class ConfidenceHead:
    """Log-odds of conditional acceptance: weight . state + bias[position].

    The state is the hidden state, or gelu(inner_weight hidden + inner_bias) of a head with units.
    """

    weight: Tensor
    """[hidden], or [units]."""
    bias: Tensor
    """[K] float32; deeper positions take the last one."""
    metadata: dict[str, Any]
    """Pair, what it was trained on, and how it did on held-out prompts."""
    inner_weight: Tensor | None = None
    """[units, hidden]."""
    inner_bias: Tensor | None = None
    """[units]."""

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The part of the metadata that a run records."""
        return {key: self.metadata[key] for key in ("pair", "label", "temperature", "provenance")}

    @property
    def hidden_size(self) -> int:
        """Numbers of the hidden state that it reads."""
        inner = self.inner_weight
        return len(self.weight) if inner is None else inner.shape[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return log-odds [rows, K] of hidden states [rows, K, hidden]."""
        positions = torch.arange(hidden.shape[1]).clamp(max=len(self.bias) - 1)
        bias = self.bias[positions].to(hidden.device)
        state = hidden.float()
        if self.inner_weight is not None and self.inner_bias is not None:
            inner = self.inner_weight.to(hidden.device).float()
            state = functional.gelu(state @ inner.T + self.inner_bias.to(hidden.device).float())
        return state @ self.weight.to(hidden.device).float() + bias


_TENSORS = ("weight", "bias", "inner_weight", "inner_bias")


def save_head(head: ConfidenceHead, path: Path) -> None:
    """Write a head as safetensors, its metadata in the header."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    given = {name: getattr(head, name) for name in _TENSORS}
    tensors = {name: tensor.contiguous() for name, tensor in given.items() if tensor is not None}
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
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return ConfidenceHead(metadata=metadata, **tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not a confidence head: {error}") from error


def find_shipped_head(pair: str) -> ConfidenceHead | None:
    """Return the head that comes with the package for this pair, if there is one."""
    for path in sorted(SHIPPED.glob("*.safetensors")):
        head = load_head(path)
        if head.metadata["pair"] == pair:
            return head
    return None
