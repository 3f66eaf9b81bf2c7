"""Features of cached draft logits on the device: one read of the logits, four numbers a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.hooks.plan import FROM_LOGITS

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = FROM_LOGITS
"""Columns in the order of the last axis."""

_CHUNK_VALUES = 2**20


def draft_features(
    logits: Tensor,  # [slots, K, vocab], before temperature; -inf where masked
    slots: Tensor,  # [n] int64, rows to read
    temperature: Tensor,  # [slots]; 0 leaves the logits as they are
    tokens: Tensor,  # [n, K] int64, the drawn tokens; negative where there is none
    out: Tensor,  # [n, K, >= 4] float32, perhaps a slice of a wider one
) -> None:
    """Write the features of q = softmax(logits / temperature) to ``out[..., :4]``.

    Log-odds of the top token (+inf if it is alone), log q1 - log q2, entropy and log-odds of the
    drawn token, in nats. A row with NaN or +inf, or wholly masked, is NaN in all of them; so is
    the drawn token's log-odds where no token is given. On CUDA one fused Triton kernel reads the
    logits once; elsewhere torch computes in float64.
    """
    if logits.is_cuda:
        from draftlab.hooks import kernel

        if kernel.AVAILABLE:
            kernel.launch(logits, slots, temperature, tokens, out)
            return
    reference(logits, slots, temperature, tokens, out)


def reference(
    logits: Tensor, slots: Tensor, temperature: Tensor, tokens: Tensor, out: Tensor
) -> None:
    """Do what `draft_features` does, in torch and float64."""
    import torch

    n, K = tokens.shape
    request = slots.repeat_interleave(K)
    position = torch.arange(K, device=slots.device).repeat(n)
    flat, rows = tokens.flatten(), max(1, _CHUNK_VALUES // logits.shape[-1])
    target = out.view(n * K, out.shape[-1])
    for i in range(0, n * K, rows):
        part = slice(i, i + rows)
        z = logits[request[part], position[part]].double()
        tau = temperature[request[part]].double()
        z /= torch.where(tau == 0, 1.0, tau)[:, None]
        target[part, : len(FEATURES)] = _rows(z, flat[part]).float()


def _rows(z: Tensor, tokens: Tensor) -> Tensor:
    import torch

    top, index = z.max(-1, keepdim=True)
    valid = top.isfinite()[:, 0] & ~z.isnan().any(-1)
    below = z - top
    # Without the top token itself: 1 - q would lose every digit of a nearly certain row.
    others = below.scatter(1, index, -torch.inf)
    mass = others.exp()
    rest = mass.sum(-1)
    drawn = below.gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    logit_qmax = -rest.log()
    logit_drawn = drawn - (rest - drawn.exp()).clamp(min=0).log1p()
    logit_drawn = torch.where(drawn == 0, logit_qmax, logit_drawn)
    spread = -(mass * others.nan_to_num(neginf=0.0)).sum(-1) / (1 + rest)
    columns = torch.stack(
        (
            logit_qmax,
            -others.amax(-1),
            rest.log1p() + spread,
            logit_drawn.where(tokens >= 0, torch.nan),
        ),
        dim=-1,
    )
    return columns.where(valid[:, None], torch.nan)
