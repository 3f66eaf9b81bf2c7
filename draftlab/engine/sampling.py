"""Pure mathematics of drafting, target sampling and rejection sampling.

A distribution over the vocabulary is held as the probabilities of a *support*: a set of
tokens that contains every token of positive probability. Truncated target distributions
then take a few hundred entries instead of a whole vocabulary. All functions are exact; noise
comes in as uniforms, so the same functions serve a seeded engine and an enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_SUPPORT = 256
"""Tokens looked at first when a distribution is truncated; widened where they do not suffice."""

_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Truncation:
    """Sampling parameters of the target side, one entry a row, all tensors of shape [n]."""

    temperature: Tensor
    """0 means greedy: all mass on the top token."""
    top_k: Tensor
    """int64; 0 means off."""
    top_p: Tensor
    """1 means off."""
    min_p: Tensor
    """0 means off."""

    def rows(self, index: Tensor | slice) -> Truncation:
        """Return the parameters of some rows."""
        return Truncation(
            self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index]
        )

    @property
    def truncates(self) -> Tensor:
        """[n] bool: whether a row's distribution has a smaller support than the vocabulary."""
        narrow = (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)
        return narrow | (self.temperature == 0)


@dataclass(frozen=True)
class Support:
    """Distributions on a support."""

    probs: Tensor
    """[n, m], rows sum to 1."""
    tokens: Tensor
    """[n, m] int64, no token twice in a row."""
    dense: bool
    """The support is the vocabulary in order: entry i is token i."""

    def prob(self, wanted: Tensor) -> Tensor:
        """Return the probability of one wanted token a row, [n]; 0 where it is off the support."""
        if self.dense:
            return self.probs.gather(1, wanted[:, None])[:, 0]
        return torch.where(self.tokens == wanted[:, None], self.probs, 0.0).sum(-1)

    def select(self, probs: Tensor) -> Tensor:
        """Return the entries of [n, vocab] probabilities on this support, [n, m]."""
        return probs if self.dense else probs.gather(1, self.tokens)


def temper(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide logits [n, vocab] by the temperature [n]; temperature 0 leaves them as they are."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    divisor = torch.where(temperature == 0, 1.0, temperature).to(wide.dtype)
    return wide / divisor[:, None]


def draft_distribution(logits: Tensor, temperature: Tensor, *, greedy: bool) -> Tensor:
    """Return q [n, vocab], the distribution that draft tokens are drawn from.

    The drafter knows the temperature only (as in vLLM). Greedy drafting and rows of
    temperature 0 put all mass on the top token.
    """
    probs = temper(logits, temperature).softmax(-1)
    one_hot = torch.zeros_like(probs).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    if greedy:
        return one_hot
    return torch.where(temperature[:, None] == 0, one_hot, probs)


def target_distribution(logits: Tensor, params: Truncation) -> Support:
    """Return p of rows of target logits [n, vocab], truncated and renormalised.

    Order as in vLLM: temperature, min-p, top-k, top-p (each on what the former left).
    Tokens that tie with the last one kept are kept too, so that the result does not depend
    on the order of a sort. Exact for any support size: the largest `FIRST_SUPPORT` logits are
    looked at first, more where a row needs them.
    """
    vocab = logits.shape[-1]
    if not bool(params.truncates.all()):
        probs = torch.cat(
            [_dense(logits[rows], params.rows(rows)) for rows in _row_slices(len(logits))]
        )
        tokens = torch.arange(vocab, device=logits.device).expand(probs.shape)
        return Support(probs, tokens, dense=True)
    width = min(vocab, max(FIRST_SUPPORT, int(params.top_k.max())))
    while True:
        pieces = [
            _truncate(temper(logits[rows], params.rows(rows).temperature), params.rows(rows), width)
            for rows in _row_slices(len(logits))
        ]
        if width == vocab or all(complete for *_, complete in pieces):
            probs, tokens = (torch.cat(part) for part in list(zip(*pieces, strict=True))[:2])
            return _trim(probs, tokens)
        width = min(vocab, 8 * width)


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return indices [n] drawn from unnormalised probabilities [n, m] by inversion.

    The uniforms [n] lie in [0, 1); an entry of probability 0 is never drawn.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    point = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]


def accept_probability(p_drawn: Tensor, q_drawn: Tensor) -> Tensor:
    """Return min(1, p(x) / q(x)) of drawn tokens (Leviathan et al., 2023); q(x) > 0."""
    return (p_drawn / q_drawn).clamp(max=1.0)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """Return sum over x of min(p, q): the acceptance probability before the draw.

    Both on one support that contains that of p, shape [..., m].
    """
    return torch.minimum(p, q).sum(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return max(p - q, 0), unnormalised: what a rejection is resampled from, [n, m].

    Where p and q are equal nothing can be rejected but by rounding; then it is p.
    """
    excess = (p - q).clamp(min=0)
    return torch.where(excess.sum(-1, keepdim=True) > 0, excess, p)


def count_accepted(p_drawn: Tensor, q_drawn: Tensor, uniform: Tensor) -> Tensor:
    """Return how many draft tokens are accepted before the first rejection, [rows] int64.

    ``p_drawn``, ``q_drawn`` and ``uniform`` are [rows, K]; token k passes if u < p(x) / q(x).
    """
    passed = uniform * q_drawn < p_drawn
    return passed.to(torch.int64).cumprod(-1).sum(-1)


def _row_slices(n: int) -> list[slice]:
    return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, n, _ROWS_AT_ONCE)]


def _dense(logits: Tensor, params: Truncation) -> Tensor:
    """Return probabilities [n, vocab] of a batch in which some row is not truncated."""
    scaled = temper(logits, params.temperature)
    probs = scaled.softmax(-1)
    narrow = params.truncates.nonzero()[:, 0]
    if len(narrow):
        part, tokens, _ = _truncate(scaled[narrow], params.rows(narrow), scaled.shape[-1])
        probs[narrow] = torch.zeros_like(part).scatter_(1, tokens, part)
    return probs


def _truncate(scaled: Tensor, params: Truncation, width: int) -> tuple[Tensor, Tensor, bool]:
    """Return (probs, tokens, complete) on the ``width`` largest entries of tempered logits."""
    top, tokens = scaled.topk(width, dim=-1)
    keep = top >= top[:, :1] + params.min_p.log()[:, None].to(top.dtype)
    kth = top.gather(1, params.top_k.clamp(1, width)[:, None] - 1)
    keep &= (top >= kth) | (params.top_k == 0)[:, None]
    kept = top.masked_fill(~keep, -torch.inf)
    whole = (params.top_k == 0) & (params.min_p == 0)
    norm = torch.where(whole, scaled.logsumexp(-1), kept.logsumexp(-1))[:, None]
    probs = (kept.double() - norm.double()).exp()
    before = probs.cumsum(-1) - probs
    inside = keep & ((before < params.top_p[:, None]) | (params.top_p >= 1)[:, None])
    floor = top.masked_fill(~inside, torch.inf).amin(-1, keepdim=True)
    keep &= top >= floor
    greedy = (params.temperature == 0)[:, None]
    first = torch.where(top == top[:, :1], tokens, scaled.shape[-1]).amin(-1, keepdim=True)
    keep = torch.where(greedy, tokens == first, keep)
    complete = (top[:, -1:] < floor) | greedy
    return (
        top.masked_fill(~keep, -torch.inf).softmax(-1),
        tokens,
        bool(complete.all()),
    )


def _trim(probs: Tensor, tokens: Tensor) -> Support:
    """Drop the columns behind the last positive probability of any row."""
    used = int((probs > 0).any(0).nonzero().max()) + 1
    return Support(probs[:, :used].contiguous(), tokens[:, :used].contiguous(), dense=False)
