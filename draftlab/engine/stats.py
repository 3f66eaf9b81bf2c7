"""Features from logits, in forms that stay exact where probabilities round to 0 or 1.

A log-odds is z_x minus the logsumexp of the *other* logits; it is never computed from 1 - q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftlab.engine.sampling import temper

if TYPE_CHECKING:
    from draftlab.engine.sampling import Support

_CHUNK_VALUES = 2**20
"""Logits handled at once: 8 MB in float64, whatever the batch and the vocabulary."""


def draft_features(
    logits: Tensor,  # [n, vocab], before temperature; -inf where masked
    temperature: Tensor,  # [n]; 0 leaves the logits as they are
    tokens: Tensor,  # [n] int64, the drawn tokens
) -> dict[str, Tensor]:
    """Return the features of draft distributions q = softmax(logits / temperature).

    Returns
    -------
    dict of str to (n,) float64
        ``logit_qmax`` log-odds of the top token (+inf if it is alone), ``top2_margin``
        log q1 - log q2 (>= 0), ``entropy`` H(q), ``logit_q_sampled`` log-odds of the drawn
        token, all in nats. A row with NaN or +inf, or wholly masked, is NaN in all of them.
    """
    rows = max(1, _CHUNK_VALUES // logits.shape[-1])
    chunks = [
        _chunk_features(logits[i : i + rows], temperature[i : i + rows], tokens[i : i + rows])
        for i in range(0, len(logits), rows)
    ]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in _FEATURES}


_FEATURES = ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled")


def _chunk_features(logits: Tensor, temperature: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    z = temper(logits.double(), temperature)
    top, index = z.max(-1, keepdim=True)
    valid = top.isfinite()[:, 0] & ~z.isnan().any(-1)
    below = z.sub_(top)  # <= 0, and 0 for the top token
    drawn = below.gather(1, tokens[:, None])[:, 0]
    others = below.scatter(1, index, -torch.inf)
    mass = others.exp()
    rest = mass.sum(-1)
    # Log-odds of a drawn token that is not the top one: the others hold the top's 1.
    others_than_drawn = rest - mass.gather(1, tokens[:, None])[:, 0]
    logit_qmax = -rest.log()
    logit_drawn = torch.where(
        tokens == index[:, 0], logit_qmax, drawn - others_than_drawn.clamp(min=0).log1p()
    )
    # Both terms are positive, so a nearly one-hot row loses no digits.
    spread = -(mass * others.nan_to_num(neginf=0.0)).sum(-1) / (1 + rest)
    columns = {
        "logit_qmax": logit_qmax,
        "top2_margin": -others.amax(-1),
        "entropy": rest.log1p() + spread,
        "logit_q_sampled": logit_drawn,
    }
    return {name: column.where(valid, torch.nan) for name, column in columns.items()}


def alternatives(
    logits: Tensor,  # [n, vocab], before temperature
    temperature: Tensor,  # [n]
    tokens: Tensor,  # [n] int64, the drawn tokens
    width: int,
) -> dict[str, Tensor]:
    """Return the most likely tokens of q = softmax(logits / temperature), the drawn one among them.

    Returns
    -------
    dict
        ``tree_rank`` [n, width] int64 and ``tree_log_prob`` [n, width] float64, log q, nats;
        ``tree_drawn`` [n] int64, which of them was drawn. A drawn token that is less likely than
        all of them takes the place of the last.
    """
    log_q = temper(logits.double(), temperature).log_softmax(-1)
    log_prob, best = log_q.topk(width, dim=-1)
    rank = torch.arange(width, device=logits.device).repeat(len(logits), 1)
    of_drawn = log_q.gather(1, tokens[:, None])
    match = best == tokens[:, None]
    drawn = torch.where(match.any(-1), match.int().argmax(-1), width - 1)
    deeper = ~match.any(-1)
    rank[deeper, -1] = (log_q > of_drawn).sum(-1)[deeper]
    log_prob[deeper, -1] = of_drawn[deeper, 0]
    return {"tree_rank": rank, "tree_log_prob": log_prob, "tree_drawn": drawn}


def target_features(p: Support, q: Tensor) -> dict[str, Tensor]:
    """Return what the log keeps of the target's distributions.

    Parameters
    ----------
    p : Support
        Target distributions, [n, m].
    q : Tensor
        The drafter's distributions over the whole vocabulary, [n, vocab].

    Returns
    -------
    dict of str to (n,) tensor
        ``target_entropy`` H(p) and ``target_margin`` log p1 - log p2 (+inf if p is one-hot), in
        nats; ``target_rank_in_q``, int64, how many tokens q holds more likely than p's top token.
    """
    best, index = p.probs.topk(min(2, p.probs.shape[-1]), dim=-1)
    second = best[:, 1] if best.shape[-1] > 1 else torch.zeros_like(best[:, 0])
    q_of_top = q.gather(1, p.tokens.gather(1, index[:, :1]))
    return {
        "target_entropy": -torch.xlogy(p.probs, p.probs).sum(-1),
        "target_margin": best[:, 0].log() - second.log(),
        "target_rank_in_q": (q > q_of_top).sum(-1),
    }
