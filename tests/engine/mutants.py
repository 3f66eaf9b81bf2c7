"""Engines that sample wrongly on purpose: whatever tests an engine must catch them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.engine import decode, sampling

if TYPE_CHECKING:
    import pytest


def no_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "residual", lambda p, q: p)


def wrong_q(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode.judge

    def judge(logits: Any, params: Any, drafts: Any, proposal: Any, uniforms: Any) -> Any:
        flat = (proposal.logits / 2).softmax(-1)  # not what the drafts were drawn from
        return right(logits, params, drafts, replace(proposal, q=flat), uniforms)

    monkeypatch.setattr(decode, "judge", judge)


def reused_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def __init__(self, seed: int, request: int) -> None:
            self.values = np.random.default_rng([seed, request]).random(9)

        def random(self, size: int | None = None) -> Any:
            return self.values[0] if size is None else self.values[:size]

    monkeypatch.setattr(decode, "make_noise", Stuck)


MUTANTS = (no_residual, wrong_q, reused_noise)
