"""A compact Llama-family decoder with a key-value cache whose rows have their own lengths.

Rows of a batch accept different numbers of draft tokens, so every row writes and reads the
cache at its own positions. A forward pass may leave out layers: that is the layer-skipping
drafter of Draft & Verify (Zhang et al., ACL 2024), which shares the target's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-family model (Llama, SmolLM2, TinyLlama, Mistral, Qwen2)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_factors: tuple[float, ...] | None = None
    """Divisors of the rotary frequencies, [head_dim / 2] (Llama 3's scaling), or None."""
    qkv_bias: bool = False


class KeyValueCache:
    """Keys and values of every layer, row and position: [layer, row, position, head, head_dim]."""

    def __init__(
        self, config: ModelConfig, rows: int, length: int, *, dtype: torch.dtype, device: str
    ) -> None:
        shape = (config.num_layers, rows, length, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def length(self) -> int:
        """Positions that a row can hold."""
        return self.keys.shape[2]


class RmsNorm(nn.Module):
    """Root mean square normalisation, computed in float32 or better."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weight


class Layer(nn.Module):
    """Attention with grouped queries, then a gated feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size
        self.attention_norm = RmsNorm(hidden, config.rms_eps)
        self.qkv = nn.Linear(hidden, sum(self.heads) * config.head_dim, bias=config.qkv_bias)
        self.out = nn.Linear(config.num_heads * config.head_dim, hidden, bias=False)
        self.mlp_norm = RmsNorm(hidden, config.rms_eps)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(
        self,
        x: Tensor,  # [rows, tokens, hidden]
        rotary: tuple[Tensor, Tensor],  # cos, sin: [rows, tokens, 1, head_dim / 2]
        cache: tuple[Tensor, Tensor],  # keys, values: [all rows, length, kv_heads, head_dim]
        rows: Tensor,  # [rows] int64, which rows of the cache these are
        positions: Tensor,  # [rows, tokens] int64
        mask: Tensor,  # [rows, 1, tokens, span] bool, True where attended
    ) -> Tensor:
        """Return the hidden states behind this layer; writes the cache at ``positions``."""
        x = x + self.out(
            self._attend(self.qkv(self.attention_norm(x)), rotary, cache, rows, positions, mask)
        )
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(functional.silu(gate) * up)
        return out

    def _attend(
        self,
        qkv: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
        rows: Tensor,
        positions: Tensor,
        mask: Tensor,
    ) -> Tensor:
        batch, tokens = positions.shape
        span = mask.shape[-1]
        query, key, value = qkv.view(batch, tokens, -1, self.head_dim).split(self.heads, dim=2)
        query, key = _rotate(query, *rotary), _rotate(key, *rotary)
        keys, values = cache
        keys[rows[:, None], positions] = key
        values[rows[:, None], positions] = value
        if batch == keys.shape[0]:  # every row in order: a view, no copy
            keys, values = keys[:, :span], values[:, :span]
        else:
            keys, values = keys[:, :span][rows], values[:, :span][rows]
        # The query heads of one key-value head act as further tokens: nothing is repeated.
        kv_heads = self.heads[1]
        group = self.heads[0] // kv_heads
        query = query.view(batch, tokens, kv_heads, group, self.head_dim)
        query = query.permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, group * tokens, -1)
        mixed = functional.scaled_dot_product_attention(
            query,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask.repeat(1, 1, group, 1),
        )
        mixed = mixed.view(batch, kv_heads, group, tokens, self.head_dim)
        return mixed.permute(0, 3, 1, 2, 4).reshape(batch, tokens, -1)


class Model(nn.Module):
    """Llama-family decoder: token ids and positions in, hidden states and logits out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.frequencies: Tensor
        self.register_buffer("frequencies", rotary_frequencies(config), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.embedding.weight.dtype

    @property
    def device(self) -> str:
        """Device of the weights."""
        return str(self.embedding.weight.device)

    def new_cache(self, rows: int, length: int) -> KeyValueCache:
        """Return an empty cache for this model."""
        return KeyValueCache(self.config, rows, length, dtype=self.dtype, device=self.device)

    def forward(
        self,
        tokens: Tensor,  # [rows, tokens] int64
        positions: Tensor,  # [rows, tokens] int64
        cache: KeyValueCache,
        rows: Tensor,  # [rows] int64, ascending
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the normalised last hidden states, [rows, tokens, hidden].

        Each token attends to the cached positions of its row up to its own, which this pass
        writes first; what lies behind is stale and not seen.
        """
        assert int(positions.max()) < cache.length, "a row has outgrown the cache"
        span = int(positions.max()) + 1
        mask = torch.arange(span, device=positions.device) <= positions[:, None, :, None]
        rotary = self._rotary(positions)
        x = self.embedding(tokens)
        for index in range(self.config.num_layers) if layers is None else layers:
            layer_cache = cache.keys[index], cache.values[index]
            x = self.layers[index](x, rotary, layer_cache, rows, positions, mask)
        hidden: Tensor = self.norm(x)
        return hidden

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions[:, :, None, None] * self.frequencies
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Return the rotary angles per position, [head_dim / 2] float64, radians."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-exponent
    if config.rope_factors is None:
        return frequencies
    return frequencies / torch.tensor(config.rope_factors, dtype=torch.float64)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
