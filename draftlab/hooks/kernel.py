"""The fused feature kernel: maximum, runner-up, mass of the others and entropy in one pass.

Each lane folds the logits it sees into four numbers (m, m2, r, t): its largest x, its second
largest, r = sum of exp(x - m) over the others and t = sum of (x - m) exp(x - m) over the others.
A new x takes one exponential: with hi, lo the larger and smaller of x and m, d = lo - hi and
e = exp(d), the old top joins the others where x is the new one,

    x > m:  r <- e (1 + r)    t <- e (t + d (1 + r))        else:  r <- r + e    t <- t + d e

The top token's own 1 never enters r, so log-odds = -log r keeps its digits where q is nearly 1.
At the end the lanes are folded into one another by the same rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import triton
    import triton.language as tl

    AVAILABLE = True
except ImportError:  # the torch form serves then
    AVAILABLE = False

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 4096
_WARPS = 8


if AVAILABLE:

    @triton.jit  # type: ignore[untyped-decorator]
    def _features_kernel(  # type: ignore[no-untyped-def]
        out_ptr,  # [n, K, >= 4] float32
        out_row_stride,
        out_position_stride,
        logits_ptr,  # [slots, K, vocab]
        logits_slot_stride,
        logits_position_stride,
        slots_ptr,  # [n] int64
        temperature_ptr,  # [slots]
        tokens_ptr,  # [n, K] int64
        tokens_row_stride,
        vocab_size,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        position = tl.program_id(1).to(tl.int64)
        slot = tl.load(slots_ptr + row)
        temperature = tl.load(temperature_ptr + slot).to(tl.float32)
        temperature = tl.where(temperature == 0.0, 1.0, temperature)
        base = logits_ptr + slot * logits_slot_stride + position * logits_position_stride
        lane = tl.arange(0, BLOCK)

        m = tl.full([BLOCK], float("-inf"), tl.float32)
        m2 = tl.full([BLOCK], float("-inf"), tl.float32)
        r = tl.zeros([BLOCK], tl.float32)
        t = tl.zeros([BLOCK], tl.float32)
        bad = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab_size, BLOCK):
            inside = start + lane < vocab_size
            z = tl.load(base + start + lane, mask=inside, other=float("-inf"))
            x = z.to(tl.float32) / temperature
            bad += ((x != x) | (x == float("inf"))).to(tl.int32)
            above = x > m
            hi = tl.where(above, x, m)
            lo = tl.where(above, m, x)
            # Finite, so that 0 * d is 0 where one of them is -inf.
            d = tl.where(lo == float("-inf"), -1.0e4, lo - hi)
            e = tl.where(lo == float("-inf"), 0.0, tl.exp(d))
            t = tl.where(above, e * (t + d * (1.0 + r)), t + d * e)
            r = tl.where(above, e * (1.0 + r), r + e)
            m2 = tl.maximum(m2, lo)
            m = hi

        top = tl.max(m, axis=0)
        is_top = lane == tl.argmax(m, axis=0)
        d = tl.where(m == float("-inf"), -1.0e4, m - top)
        e = tl.where(m == float("-inf"), 0.0, tl.exp(d))
        own = tl.where(is_top, 0.0, e)
        rest = tl.sum(e * r + own, axis=0)
        spread = tl.sum(e * (t + d * r) + own * d, axis=0)
        second = tl.max(tl.maximum(m2, tl.where(is_top, float("-inf"), m)), axis=0)

        token = tl.load(tokens_ptr + row * tokens_row_stride + position)
        drawn = tl.load(base + tl.maximum(token, 0)).to(tl.float32) / temperature - top
        others = tl.maximum(rest - tl.exp(drawn), 0.0)
        logit_qmax = -tl.log(rest)
        logit_drawn = tl.where(drawn == 0.0, logit_qmax, drawn - tl.log(1.0 + others))
        # log(1 + rest) by its series where 1 + rest would round.
        series = rest * (1.0 - rest * (0.5 - rest * (1.0 / 3.0)))
        entropy = tl.where(rest < 1.0e-3, series, tl.log(1.0 + rest)) - spread / (1.0 + rest)

        nan = float("nan")
        valid = (tl.sum(bad, axis=0) == 0) & (top > float("-inf"))
        target = out_ptr + row * out_row_stride + position * out_position_stride
        tl.store(target, tl.where(valid, logit_qmax, nan))
        tl.store(target + 1, tl.where(valid, top - second, nan))
        tl.store(target + 2, tl.where(valid, entropy, nan))
        tl.store(target + 3, tl.where(valid & (token >= 0), logit_drawn, nan))


def launch(
    logits: Tensor,
    slots: Tensor,
    temperature: Tensor,
    tokens: Tensor,
    out: Tensor,
    *,
    block: int = _BLOCK,
) -> None:
    """Write the features to ``out[..., :4]``; arguments as in `draft_columns.draft_features`."""
    n, K = tokens.shape
    assert logits.stride(-1) == out.stride(-1) == tokens.stride(-1) == slots.stride(-1) == 1
    kernel: Any = _features_kernel
    kernel[(n, K)](
        out,
        out.stride(0),
        out.stride(1),
        logits,
        logits.stride(0),
        logits.stride(1),
        slots,
        temperature,
        tokens,
        tokens.stride(0),
        logits.shape[-1],
        BLOCK=block,
        num_warps=_WARPS,
    )
