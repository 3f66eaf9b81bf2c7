"""Drafters: the target with layers left out, or a separate smaller checkpoint.

A drafter proposes one token after the other from the last emitted token of each row. It keeps
no state but the key-value cache: what a rejected draft wrote there is overwritten before it
can be seen, because every pass writes its positions first and attends up to them only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from draftlab.engine.sampling import draft_distribution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.engine.model import KeyValueCache, Model


class Drafter(Protocol):
    """What the decoder asks of a drafter."""

    method: str
    """Draft method, as the log names it."""
    model: Model
    """Its head turns hidden states into logits."""

    def prefill(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> None:
        """Read the prompts of new requests: tokens and positions [rows, tokens]."""

    def hidden(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return the last hidden state [rows, hidden] behind the given tokens [rows, 1 or 2].

        The first call of a proposal gives the last two tokens of each row, the later ones the
        token just drawn.
        """


@dataclass
class LayerSkipDrafter:
    """Self-speculation (Draft & Verify): the target without some layers, on the target's cache."""

    model: Model
    cache: KeyValueCache
    skip_layers: tuple[int, ...]
    method: str = field(default="layer_skip", init=False)

    def __post_init__(self) -> None:
        skipped = set(self.skip_layers)
        self._layers = [i for i in range(self.model.config.num_layers) if i not in skipped]

    def prefill(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> None:
        """Do nothing: the target has read the prompt into the shared cache."""

    def hidden(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return the state behind the last token; the verified prefix is the target's own."""
        # All but the last emitted token stand verified in the cache, better than we could write.
        states: Tensor = self.model(
            tokens[:, -1:], positions[:, -1:], self.cache, rows, self._layers
        )
        return states[:, -1]


@dataclass
class ModelDrafter:
    """A separate, smaller model with the target's vocabulary and a cache of its own."""

    model: Model
    cache: KeyValueCache
    method: str = field(default="draft_model", init=False)

    def prefill(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> None:
        """Read the prompts into the drafter's cache."""
        self.model(tokens, positions, self.cache, rows)

    def hidden(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """Return the state behind the last token.

        After a full acceptance the last draft token has not been read yet; with two tokens at
        the start of a proposal it always is.
        """
        states: Tensor = self.model(tokens, positions, self.cache, rows)
        return states[:, -1]


def search_skip_layers(
    model: Model, texts: Sequence[Sequence[int]], count: int, *, temperature: float = 1.0
) -> tuple[int, ...]:
    """Choose ``count`` layers whose absence costs the least acceptance, one after the other.

    Greedy forward selection on the mean overlap of drafter and target over every position of
    the given token sequences (the drafter reads the prefix with its own layers here, a close
    proxy of live drafting, where it reads the target's cache).

    Parameters
    ----------
    model : Model
        The target.
    texts : sequence of token sequences
        Text such as the target writes: prompts with their answers.
    count : int
        Layers to leave out, fewer than the model has.
    temperature : float
        Temperature of both sides; the layers matter, not the truncation.

    Returns
    -------
    tuple of int
        The layers, in the order in which they were chosen.
    """
    wanted = [_probabilities(model, text, None, temperature) for text in texts]
    chosen: tuple[int, ...] = ()
    for _ in range(count):
        scores = {
            layer: _mean_overlap(model, texts, wanted, (*chosen, layer), temperature)
            for layer in range(model.config.num_layers)
            if layer not in chosen
        }
        chosen = (*chosen, max(scores, key=lambda layer: scores[layer]))
    return chosen


def _mean_overlap(
    model: Model,
    texts: Sequence[Sequence[int]],
    wanted: Sequence[Tensor],
    skip: tuple[int, ...],
    temperature: float,
) -> float:
    layers = [i for i in range(model.config.num_layers) if i not in skip]
    shared = [
        torch.minimum(p, _probabilities(model, text, layers, temperature)).sum(-1)
        for text, p in zip(texts, wanted, strict=True)
    ]
    return float(torch.cat(shared).mean())


def _probabilities(
    model: Model, text: Sequence[int], layers: list[int] | None, temperature: float
) -> Tensor:
    tokens = torch.tensor([list(text)], device=model.device)
    positions = torch.arange(len(text), device=model.device)[None]
    rows = torch.zeros(1, dtype=torch.int64, device=model.device)
    hidden = model(tokens, positions, model.new_cache(1, len(text)), rows, layers)
    return draft_distribution(
        model.head(hidden[0]),
        torch.full((len(text),), temperature, device=model.device),
        greedy=False,
    )
