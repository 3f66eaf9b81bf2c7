"""Tiny random models in float64, small enough to enumerate."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from draftlab.engine import sampling
from draftlab.engine.decode import Request, SpeculativeDecoder
from draftlab.engine.drafters import LayerSkipDrafter, ModelDrafter
from draftlab.engine.model import Model, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from draftlab.engine.decode import StepResult


def tiny_model(seed: int = 0, *, vocab: int = 6, layers: int = 3, spread: float = 2.0) -> Model:
    """Return a random model whose distributions differ from token to token."""
    config = ModelConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=24,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
    )
    generator = torch.Generator().manual_seed(seed)
    model = Model(config).double()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            continue
        scale = spread if name.startswith("head") else 1.0
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = scale * noise / parameter.shape[-1] ** 0.5
    return model.eval().requires_grad_(False)


def make_decoder(
    target: Model,
    *,
    slots: int = 1,
    context: int = 48,
    skip: tuple[int, ...] = (1,),
    drafter: Model | None = None,
    num_speculative_tokens: int = 2,
    greedy_drafting: bool = False,
    stop_tokens: Iterable[int] = (),
    seed: int = 0,
) -> SpeculativeDecoder:
    cache = target.new_cache(slots, context)
    return SpeculativeDecoder(
        target,
        cache,
        LayerSkipDrafter(target, cache, skip)
        if drafter is None
        else ModelDrafter(drafter, drafter.new_cache(slots, context)),
        num_speculative_tokens=num_speculative_tokens,
        greedy_drafting=greedy_drafting,
        stop_tokens=frozenset(stop_tokens),
        seed=seed,
    )


def run(
    decoder: SpeculativeDecoder, requests: Iterable[Request]
) -> tuple[dict[int, tuple[int, ...]], list[StepResult]]:
    """Decode all requests; return their outputs and what every step brought."""
    queue = iter(requests)
    outputs: dict[int, tuple[int, ...]] = {}
    results = []
    while True:
        result = decoder.step(lambda: next(queue, None))
        results.append(result)
        outputs |= {done.request: done.output for done in result.finished}
        if not decoder.busy and not result.finished:
            return outputs, results


def next_probabilities(
    model: Model, prefix: tuple[int, ...], params: sampling.Truncation
) -> torch.Tensor:
    """Return the target's next-token distribution, by a forward pass over the whole prefix."""
    tokens = torch.tensor([prefix])
    positions = torch.arange(len(prefix))[None]
    hidden = model(tokens, positions, model.new_cache(1, len(prefix)), torch.tensor([0]))
    support = sampling.target_distribution(model.head(hidden[0, -1:]), params)
    dense = torch.zeros(1, model.config.vocab_size, dtype=torch.float64)
    return dense.scatter(1, support.tokens, support.probs)[0]


def continuation_probabilities(
    model: Model, prompt: tuple[int, ...], length: int, params: sampling.Truncation
) -> dict[tuple[int, ...], float]:
    """Return the exact probability of every continuation of the given length."""
    vocab = range(model.config.vocab_size)
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for tail, probability in exact.items():
            following = next_probabilities(model, prompt + tail, params).tolist()
            for token in vocab:
                longer[(*tail, token)] = probability * following[token]
        exact = longer
    assert len(exact) == len(list(itertools.product(vocab, repeat=length)))
    return exact


def truncation(
    temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, n: int = 1
) -> sampling.Truncation:
    return sampling.Truncation(
        torch.full((n,), temperature, dtype=torch.float64),
        torch.full((n,), top_k),
        torch.full((n,), top_p, dtype=torch.float64),
        torch.full((n,), min_p, dtype=torch.float64),
    )
