"""Train a confidence head for the reference engine, on a collecting run of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from draftlab import provenance
from draftlab.engine.collect import Collector, Progress, Settings, load_engine, read_prompts
from draftlab.engine.confidence import ConfidenceHead, save_head
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

LABELS = ("overlap", "accepted")
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Inverse strengths C of the ridge that are tried on held-out prompts."""
_HELD_OUT = 5  # every fifth prompt


@dataclass(frozen=True)
class _Examples:
    hidden: NDArray[np.float32]  # [n, hidden]
    position: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    overlap: NDArray[np.float64]
    group: NDArray[np.int64]

    def rows(self, chosen: NDArray[np.bool_]) -> _Examples:
        return _Examples(
            self.hidden[chosen],
            self.position[chosen],
            self.accepted[chosen],
            self.overlap[chosen],
            self.group[chosen],
        )


class _Memory:
    """Takes what a log writer would take, and keeps the labelled rows with their states."""

    def __init__(self) -> None:
        self.groups: dict[int, int] = {}
        self.parts: list[dict[str, Any]] = []

    def request(self, request: int, **columns: Any) -> None:
        if "group" in columns:
            self.groups[request] = int(columns["group"].rpartition("/")[2])

    def step(
        self,
        row: Mapping[str, Any] | None,  # noqa: ARG002 - the interface of a log writer
        drafts: Mapping[str, Any] | None = None,
    ) -> None:
        if drafts is None or "overlap" not in drafts:
            return
        chosen = ~np.ma.getmaskarray(drafts["accepted"]) & (drafts["excluded"] == 0)
        names = ("hidden", "position", "accepted", "overlap", "request")
        self.parts.append({name: np.ma.getdata(drafts[name])[chosen] for name in names})

    def examples(self) -> _Examples:
        joined = {
            name: np.concatenate([part[name] for part in self.parts]) for name in self.parts[0]
        }
        group = np.array([self.groups[int(r)] for r in joined.pop("request")])
        return _Examples(
            joined["hidden"],
            joined["position"].astype(np.int64),
            joined["accepted"],
            joined["overlap"].astype(np.float64).clip(0, 1),
            group,
        )


def train_head(
    out: Path,
    settings: Settings,
    *,
    label: str = "overlap",
    mismatch_weight: float = 1.0,
    on_step: Callable[[Progress], None] = lambda _: None,
) -> ConfidenceHead:
    """Collect hidden states live, fit the probe, write it to ``out``.

    Parameters
    ----------
    out : path
        File to write, .safetensors.
    settings : Settings
        The run to learn from; its prompts should be none that the head is graded on. Without
        prompt files the training suite is used.
    label : {"overlap", "accepted"}
        Learn the exact acceptance probability (soft labels) or the accept decisions.
    mismatch_weight : float
        Weight of rejection against acceptance; SpecDec++ uses 6, which makes the head cautious
        and miscalibrated on purpose.
    on_step
        Called after every engine step.

    Returns
    -------
    ConfidenceHead
        The strength of the ridge is chosen by log-loss on every fifth prompt; the metadata hold
        the held-out figures.

    Raises
    ------
    InputError
        A setting is unusable, or too little was collected.
    """
    if label not in LABELS:
        raise InputError(f"unknown label {label!r}; known: {', '.join(LABELS)}")
    if not mismatch_weight > 0:
        raise InputError(f"mismatch_weight must be > 0, got {mismatch_weight}")
    chosen = replace(settings, head="none")
    chosen.check()
    prompts = read_prompts(chosen, suites=("training",))
    engine = load_engine(chosen)
    memory = _Memory()
    Collector(chosen, engine, prompts, keep_hidden=True).run(memory, on_step)
    examples = memory.examples()
    held_out = examples.group % _HELD_OUT == 0
    if held_out.all() or not held_out.any():
        raise InputError("a head needs prompts to learn from and others to choose by: give more")
    fit, check = examples.rows(~held_out), examples.rows(held_out)
    scores = {
        c: _log_loss(_fit(fit, label, mismatch_weight, c), check, label, mismatch_weight)
        for c in PENALTIES
    }
    best = min(scores, key=lambda c: scores[c])
    weight, bias = _fit(examples, label, mismatch_weight, best)
    head = ConfidenceHead(
        torch.from_numpy(weight.astype(np.float32)),
        torch.from_numpy(bias.astype(np.float32)),
        {
            "pair": engine.pair,
            "label": label,
            "mismatch_weight": mismatch_weight,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            "inverse_ridge": best,
            "examples": len(examples.position),
            "prompts": len(np.unique(examples.group)),
            "held_out_log_loss": scores[best],
            "settings": asdict(chosen),
            "provenance": provenance.collect(packages=("torch", "scikit-learn"), seed=chosen.seed),
        },
    )
    save_head(head, out)
    return head


def _fit(
    examples: _Examples, label: str, mismatch_weight: float, inverse_ridge: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weight [hidden] and bias [K] of a ridge logistic probe on standardised states."""
    mean, scale = examples.hidden.mean(0), examples.hidden.std(0) + 1e-6
    K = int(examples.position.max()) + 1
    # Positions are scaled up, so that the ridge hardly holds them back.
    design = np.hstack([(examples.hidden - mean) / scale, 30.0 * np.eye(K)[examples.position]])
    target = _target(examples, label)
    # A soft label is an acceptance and a rejection with its probabilities as weights.
    model = LogisticRegression(C=inverse_ridge, fit_intercept=False, solver="newton-cholesky")
    model.fit(
        np.vstack([design, design]),
        np.repeat([True, False], len(target)),
        np.concatenate([target, mismatch_weight * (1 - target)]),
    )
    coefficients = model.coef_[0]
    weight = coefficients[:-K] / scale
    return weight, 30.0 * coefficients[-K:] - weight @ mean


def _target(examples: _Examples, label: str) -> NDArray[np.float64]:
    return examples.overlap if label == "overlap" else examples.accepted.astype(np.float64)


def _log_loss(
    fitted: tuple[NDArray[np.float64], NDArray[np.float64]],
    examples: _Examples,
    label: str,
    mismatch_weight: float,
) -> float:
    weight, bias = fitted
    logit = examples.hidden @ weight + bias[np.minimum(examples.position, len(bias) - 1)]
    target = _target(examples, label)
    loss = target * np.logaddexp(0, -logit)
    loss += mismatch_weight * (1 - target) * np.logaddexp(0, logit)
    return float(loss.mean())
