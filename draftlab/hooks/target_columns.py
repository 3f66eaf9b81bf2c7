"""The target's side of a draft: overlap and acceptance probability, from p and q on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK_VALUES = 2**25
"""Probabilities held at once: 128 MB each for p and q."""


def judged_rows(
    sampled: Tensor,  # [rows] token fed to the target at each row; -1 invalid
    slots: Tensor,  # [rows]
    positions: Tensor,  # [rows] 0 at a request's last token, then 1, 2, ... at its drafts
) -> tuple[Tensor, Tensor, Tensor]:
    """Return drafts, slots and positions that rows 0 .. rows - 2 of the target's logits judge.

    The row behind which draft k stands judges it; a request's last row judges none and gets slot
    -1, the sink. No value is read on the host.
    """
    import torch

    judges = (positions[1:] == positions[:-1] + 1) & (slots[1:] == slots[:-1]) & (sampled[1:] >= 0)
    sink = torch.full_like(slots[:-1], -1)
    return sampled[1:], torch.where(judges, slots[:-1], sink), positions[:-1]


def target_columns(
    target_logits: Tensor,  # [rows, vocab], after every transform; one row behind each draft
    draft_logits: Tensor | None,  # [slots, K, vocab] before temperature; None: greedy drafting
    tokens: Tensor,  # [rows] the drafts that these rows judge
    slots: Tensor,  # [rows]
    positions: Tensor,  # [rows]
    temperature: Tensor,  # [slots]
    out: Tensor,  # [slots, K, 2] float32: overlap, accept_prob
) -> None:
    """Write sum min(p, q) and min(1, p(x)/q(x)) of each judged draft to ``out[slot, position]``.

    Slot -1 is a sink: the last row of ``out``, which nobody reads. A temperature of 0 makes p
    one-hot. Where the draft was not drawn at random (greedy drafting,
    or temperature 0), both are p(x).
    """
    rows = max(1, _CHUNK_VALUES // target_logits.shape[-1])
    positions = positions.long().clamp(max=out.shape[1] - 1)  # a bonus row may stand at K
    for i in range(0, len(tokens), rows):
        part = slice(i, i + rows)
        out[slots[part], positions[part]] = _rows(
            target_logits[part],
            draft_logits,
            tokens[part],
            slots[part],
            positions[part],
            temperature[slots[part].clamp(min=0)],
        )


def _rows(
    target_logits: Tensor,
    draft_logits: Tensor | None,
    tokens: Tensor,
    slots: Tensor,
    positions: Tensor,
    temperature: Tensor,
) -> Tensor:
    import torch

    slots = slots.clamp(min=0)
    p = target_logits.float().softmax(-1)
    greedy = temperature == 0
    best = target_logits.argmax(-1)
    drawn = tokens.long().clamp(min=0)[:, None]
    p_drawn = torch.where(greedy, (best == drawn[:, 0]).float(), p.gather(1, drawn)[:, 0])
    if draft_logits is None:
        return torch.stack((p_drawn, p_drawn), dim=-1)
    tau = torch.where(greedy, 1.0, temperature)[:, None]
    q = (draft_logits[slots, positions].float() / tau).softmax(-1)
    q_drawn = q.gather(1, drawn)[:, 0]
    overlap = torch.where(greedy, p_drawn, torch.minimum(p, q).sum(-1).clamp(max=1.0))
    accept = torch.where(greedy, p_drawn, (p_drawn / q_drawn).clamp(max=1.0))
    return torch.stack((overlap, accept), dim=-1)
