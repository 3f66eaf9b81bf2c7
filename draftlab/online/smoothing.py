"""Smooth a trained head's confidence along each request, as vLLM's first pull request did.

PR #47808: "per-request confidence is smoothed with an EMA", alpha 0.8, before the survival product.
The merged source no longer has it. Here alpha is the weight of the past, p <- 0.8 p_before + 0.2 p,
as a public port of the rule (vLLM for Ascend) reads it; the pull request itself does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

SMOOTHED = "confidence_ema"
"""Feature that is made of the column confidence; log-odds."""
EMA_WEIGHT = 0.8
"""Weight of the past."""

INPUTS = ("slot", "request", "position", "confidence")
"""Columns of the rows to smooth. Hidden and rejected drafts have a confidence too: all rows."""
_KEY = ("slot", "request", "position")


@dataclass
class Smoother:
    """Carries the smoothed probabilities of every slot from one batch of rows to the next."""

    weight: float = EMA_WEIGHT
    _last: pl.DataFrame | None = None
    """One row per slot and position; another request in the slot begins anew."""

    def add(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with the column `SMOOTHED`; they come in the order of their steps."""
        confidence = pl.col("confidence").cast(pl.Float64)
        fresh = frame.select(*_KEY, p=1 / (1 + (-confidence).exp()))
        before = 0 if self._last is None else self._last.height
        rows = fresh if self._last is None else pl.concat([self._last, fresh])
        smoothed = pl.col("p").ewm_mean(alpha=1 - self.weight, adjust=False, ignore_nulls=True)
        rows = rows.with_columns(p=smoothed.over(_KEY))
        self._last = (
            rows.group_by("slot", "position", maintain_order=True).last().select(*_KEY, "p")
        )
        p = rows["p"][before:]
        return frame.with_columns((p.log() - (-p).log1p()).alias(SMOOTHED))
