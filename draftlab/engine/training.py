"""Train a confidence head for the reference engine, on a collecting run of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import nn

from draftlab import provenance
from draftlab.engine.collect import Collector, CollectSettings, Progress, load_engine, read_prompts
from draftlab.engine.confidence import ConfidenceHead, save_head
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

LABELS = ("overlap", "accepted")
PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Inverse strengths C of the ridge that are tried on held-out prompts."""
UNITS = 64
"""Of the hidden layer: as float16 such a head takes less than 100 kB."""
_HELD_OUT = 5  # every fifth prompt


@dataclass(frozen=True)
class _Examples:
    hidden: NDArray[np.float32]  # [n, hidden]
    position: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    overlap: NDArray[np.float64]
    logit_qmax: NDArray[np.float64]
    group: NDArray[np.int64]

    def rows(self, chosen: NDArray[np.bool_]) -> _Examples:
        return _Examples(**{name: values[chosen] for name, values in vars(self).items()})


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
        names = ("hidden", "position", "accepted", "overlap", "logit_qmax", "request")
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
            joined["logit_qmax"].astype(np.float64),
            group,
        )


def train_head(
    out: Path,
    settings: CollectSettings,
    *,
    label: str = "overlap",
    units: int = UNITS,
    mismatch_weight: float = 1.0,
    on_step: Callable[[Progress], None] = lambda _: None,
) -> ConfidenceHead:
    """Collect hidden states live, fit the head, write it to ``out``.

    Parameters
    ----------
    out : path
        File to write, .safetensors.
    settings : CollectSettings
        The run to learn from; its prompts should be none that the head is graded on. Without
        prompt files the training suite is used.
    label : {"overlap", "accepted"}
        Learn the exact acceptance probability (soft labels) or the accept decisions.
    units : int
        Of the hidden layer; 0 is a linear probe.
    mismatch_weight : float
        Weight of rejection against acceptance; SpecDec++ uses 6, which makes the head cautious
        and miscalibrated on purpose.
    on_step
        Called after every engine step.

    Returns
    -------
    ConfidenceHead
        Trained on all prompts. The metadata hold how the same recipe does on every fifth prompt
        when it learns from the others, with the AUC of logit_qmax on those rows beside it.

    Raises
    ------
    InputError
        A setting is unusable, or too little was collected.
    """
    if label not in LABELS:
        raise InputError(f"unknown label {label!r}; known: {', '.join(LABELS)}")
    if not mismatch_weight > 0:
        raise InputError(f"mismatch_weight must be > 0, got {mismatch_weight}")
    if units < 0:
        raise InputError(f"units must be >= 0, got {units}")
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
    recipe = _Recipe(label, mismatch_weight, units, chosen.seed)
    tensors, how = fit_head(examples, held_out, recipe)
    head = ConfidenceHead(
        metadata={
            "pair": engine.pair,
            "label": label,
            "mismatch_weight": mismatch_weight,
            "units": units,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            "examples": len(examples.position),
            "prompts": len(np.unique(examples.group)),
            **how,
            "settings": asdict(chosen),
            "provenance": provenance.collect(packages=("torch", "scikit-learn"), seed=chosen.seed),
        },
        **tensors,
    )
    save_head(head, out)
    return head


class _Recipe(NamedTuple):
    label: str
    mismatch_weight: float
    units: int
    seed: int

    def target(self, examples: _Examples) -> NDArray[np.float64]:
        """Return soft labels [n]."""
        return examples.overlap if self.label == "overlap" else examples.accepted.astype(np.float64)


_Tensors = dict[str, torch.Tensor]


def fit_head(
    examples: _Examples, held_out: NDArray[np.bool_], recipe: _Recipe
) -> tuple[_Tensors, dict[str, Any]]:
    """Return the head's tensors, fitted to all examples, and how the recipe does held out."""
    fit, check = examples.rows(~held_out), examples.rows(held_out)
    how: dict[str, Any] = {}
    if recipe.units:
        trial = _fit_layers(fit, recipe)
        final = _fit_layers(examples, recipe)
    else:
        trials = {c: _fit_linear(fit, recipe, c) for c in PENALTIES}
        losses = {c: _log_loss(found, check, recipe) for c, found in trials.items()}
        how["inverse_ridge"] = min(losses, key=lambda c: losses[c])
        trial = trials[how["inverse_ridge"]]
        final = _fit_linear(examples, recipe, how["inverse_ridge"])
    return final, how | {
        "held_out_log_loss": _log_loss(trial, check, recipe),
        "held_out_auc": roc_auc_score(check.accepted, _logits(trial, check)),
        "held_out_auc_logit_qmax": roc_auc_score(check.accepted, check.logit_qmax),
    }


def _fit_linear(examples: _Examples, recipe: _Recipe, inverse_ridge: float) -> _Tensors:
    """Return weight [hidden] and bias [K] of a ridge logistic probe on standardised states."""
    mean, scale = examples.hidden.mean(0), examples.hidden.std(0) + 1e-6
    K = int(examples.position.max()) + 1
    # Positions are scaled up, so that the ridge hardly holds them back.
    design = np.hstack([(examples.hidden - mean) / scale, 30.0 * np.eye(K)[examples.position]])
    target = recipe.target(examples)
    # A soft label is an acceptance and a rejection with its probabilities as weights.
    model = LogisticRegression(C=inverse_ridge, fit_intercept=False, solver="newton-cholesky")
    model.fit(
        np.vstack([design, design]),
        np.repeat([True, False], len(target)),
        np.concatenate([target, recipe.mismatch_weight * (1 - target)]),
    )
    coefficients = model.coef_[0]
    weight = coefficients[:-K] / scale
    bias = 30.0 * coefficients[-K:] - weight @ mean
    return {"weight": torch.from_numpy(weight).float(), "bias": torch.from_numpy(bias).float()}


def _fit_layers(examples: _Examples, recipe: _Recipe) -> _Tensors:
    """Return the tensors of a head with one hidden layer, float16 but for the bias [K].

    AdamW with dropout on standardised states, one cycle of the learning rate.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        states = torch.from_numpy(examples.hidden)
        mean, scale = states.mean(0), states.std(0) + 1e-6
        states = (states - mean) / scale
        position = torch.from_numpy(examples.position)
        target = torch.from_numpy(recipe.target(examples)).float()
        inner, outer = nn.Linear(states.shape[1], recipe.units), nn.Linear(recipe.units, 1)
        layers = nn.Sequential(nn.Dropout(0.2), inner, nn.GELU(), nn.Dropout(0.2), outer)
        bias = nn.Parameter(torch.zeros(int(position.max()) + 1))
        parameters = [*layers.parameters(), bias]
        steps = _EPOCHS * -(-len(target) // _BATCH)
        optimiser = torch.optim.AdamW(parameters, weight_decay=1.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
        for rows in (r for _ in range(_EPOCHS) for r in torch.randperm(len(target)).split(_BATCH)):
            logit = layers(states[rows])[:, 0] + bias[position[rows]]
            loss = _loss(logit, target[rows], recipe.mismatch_weight).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    weight = inner.weight.detach() / scale
    return {
        "weight": outer.weight.detach()[0].half(),
        "bias": (bias + outer.bias).detach(),
        "inner_weight": weight.half(),
        "inner_bias": (inner.bias.detach() - weight @ mean).half(),
    }


_EPOCHS, _BATCH = 30, 512


def _loss(logit: torch.Tensor, target: torch.Tensor, mismatch_weight: float) -> torch.Tensor:
    """Return the weighted log-loss of each row, nats."""
    accepted, rejected = nn.functional.softplus(-logit), nn.functional.softplus(logit)
    return target * accepted + mismatch_weight * (1 - target) * rejected


def _logits(tensors: _Tensors, examples: _Examples) -> NDArray[np.float64]:
    hidden = torch.from_numpy(examples.hidden)
    head = ConfidenceHead(metadata={}, **tensors)
    K = len(head.bias)
    every = head.logits(hidden[:, None].expand(-1, K, -1)).double().numpy()
    found: NDArray[np.float64] = np.take_along_axis(
        every, np.minimum(examples.position, K - 1)[:, None], axis=1
    )[:, 0]
    return found


def _log_loss(tensors: _Tensors, examples: _Examples, recipe: _Recipe) -> float:
    logit = torch.from_numpy(_logits(tensors, examples))
    target = torch.from_numpy(recipe.target(examples))
    return float(_loss(logit, target, recipe.mismatch_weight).mean())
