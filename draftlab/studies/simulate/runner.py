"""The policies by name, and how each runs over batches of logged proposals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy.special import expit

from draftlab.errors import InputError
from draftlab.online.rivals import ESTIMATORS
from draftlab.online.vllm import Constants
from draftlab.policies.stopping import (
    draft_and_verify,
    fixed,
    rejection_threshold,
    static_threshold,
)
from draftlab.policies.tree import NUM_NODES
from draftlab.predictors.baselines import PREDICTORS
from draftlab.predictors.survival import SURVIVAL
from draftlab.studies.simulate.batches import Rule, admit_adaptively, admit_online
from draftlab.studies.simulate.logged_trees import LoggedTrees
from draftlab.studies.simulate.proposals import STS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab._types import FloatArray, IntArray
    from draftlab.features import Drafting
    from draftlab.policies.cost import CostTable
    from draftlab.policies.stopping import Lengths
    from draftlab.studies.simulate.batches import Survivals
    from draftlab.studies.simulate.frontier import Batch
    from draftlab.studies.simulate.proposals import CompleteProposals, Predictions

Reads = Literal["nothing", "survival", "conditional", "draw", "tree", "truth"]

ONLINE = "online-"
"""Predictors ``online-NAME`` are the estimators of a replay, driving themselves."""
SCALED = ("confidence", "qmax")
"""Predictors that may stand behind sequential temperature scaling, as ``confidence-sts``."""
_DRAWN = "logit_q_sampled"


@dataclass(frozen=True)
class Policy:
    """A way to choose how many drafts are verified."""

    name: str
    doc: str
    reads: Reads
    """``survival`` and ``conditional``: of a predictor."""
    rule: Rule | None = None
    """Of those that share a budget among requests."""


POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy("fixed", "the same number of drafts for everyone", "nothing"),
        Policy("av", "vLLM's adaptive verification: sized by confidences a step old", "survival",
               Rule()),
        Policy("av-gain", "TensorRT-LLM: the same, trims only for a predicted gain of 4 %",
               "survival", Rule(min_gain=0.04)),
        Policy("dspark", "DSpark algorithm 1: this step's confidences, stop at the first fall",
               "survival", Rule(lag=0, early_stop=True)),
        Policy("dspark-deployed", "DSpark as deployed: confidences two steps old", "survival",
               Rule(lag=2)),
        Policy("threshold", "end before the first prediction under 0.5", "conditional"),
        Policy("specdec", "SpecDec++: stop once a rejection is likelier than 0.3", "conditional"),
        Policy("draft-verify", "Draft & Verify: stop behind a token under an adaptive threshold",
               "draw"),
        Policy("eagle2", "EAGLE-2: the nodes of a logged tree with the largest product of q",
               "tree"),
        Policy("clairvoyant", "ceiling: knows every label before it verifies", "truth",
               Rule(lag=0)),
    )
}  # fmt: skip


class Job(NamedTuple):
    """A policy with its predictor, ready to run."""

    policy: Policy
    predictor: str | None
    length: int | None
    """Of the fixed policy; of a tree, the nodes sent at most."""

    @property
    def name(self) -> str:
        """Policy, policy/predictor, or policy with its nodes."""
        if self.policy.reads == "tree":
            return f"{self.policy.name} of {self.length} nodes"
        return (
            self.policy.name if self.predictor is None else f"{self.policy.name}/{self.predictor}"
        )

    def lossless(self, drafting: Drafting) -> bool:
        """Return whether the policy keeps the target's distribution, derived from what it reads.

        Stopping behind a token decides on the next one and may read what was drawn. A budget
        may be sized by old confidences, or by the best survivals of this step up to the first
        fall; both keep what is lossless in the predictor.
        """
        if self.policy.reads == "truth":
            return False
        if self.predictor is None or self.policy.name == "specdec":
            return True
        return reads_no_draw(self.predictor, drafting)


def online_feature(predictor: str) -> str:
    """Return the column that the estimator of ``online-NAME`` reads."""
    return ESTIMATORS[predictor.removeprefix(ONLINE)].feature or "logit_qmax"


def base_predictors(job: Job) -> list[str]:
    """Return the conditional predictors that a job is made of.

    Examples
    --------
    >>> base_predictors(Job(POLICIES["av"], "hybrid", None))
    ['logit_q_sampled', 'logit_qmax']
    """
    if job.policy.reads == "draw":
        return [_DRAWN]
    if job.predictor is None:
        return []
    if job.predictor.startswith(ONLINE):
        return [online_feature(job.predictor)]
    if job.predictor in SURVIVAL:
        return [SURVIVAL[job.predictor].drawn, SURVIVAL[job.predictor].at_draw]
    return [job.predictor.removesuffix(STS)]


def reads_no_draw(predictor: str, drafting: Drafting) -> bool:
    """Return whether the factor of a predictor at k may decide on x_k."""
    if predictor.startswith(ONLINE):
        predictor = online_feature(predictor)
    elif predictor in SURVIVAL:
        predictor = SURVIVAL[predictor].at_draw
    return PREDICTORS[predictor.removesuffix(STS)].lossless(drafting)


def make_jobs(specs: Sequence[str], num_positions: int) -> list[Job]:
    """Return the jobs of specifications ``fixed``, ``POLICY`` or ``POLICY/PREDICTOR``.

    Raises
    ------
    InputError
        An unknown policy or predictor, or a predictor where none, or no one where one, belongs.
    """
    jobs = []
    for spec in dict.fromkeys(specs):
        name, _, predictor = spec.partition("/")
        if name not in POLICIES:
            raise InputError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
        policy = POLICIES[name]
        needs = policy.reads in ("survival", "conditional")
        if needs != bool(predictor):
            wanted = f"{name}/PREDICTOR" if needs else name
            raise InputError(f"policy {spec!r}: wanted {wanted}")
        if predictor:
            check_predictor(predictor, policy)
        if name == "fixed":
            jobs += [Job(policy, None, length) for length in range(num_positions + 1)]
        elif policy.reads == "tree":
            sizes = sorted({*(num_positions * n for n in (1, 2, 4)), NUM_NODES - 1})
            jobs += [Job(policy, None, size) for size in sizes]
        else:
            jobs.append(Job(policy, predictor or None, None))
    return jobs


def check_predictor(name: str, policy: Policy) -> None:
    """Raise InputError for a name that this policy cannot use."""
    online = [f"{ONLINE}{n}" for n in ESTIMATORS]
    known = [*PREDICTORS, *(f"{n}{STS}" for n in SCALED)]
    if policy.reads == "survival":
        known += [*SURVIVAL, *online]
    if name not in known:
        raise InputError(
            f"unknown predictor {name!r} of policy {policy.name}; known: {', '.join(known)}"
        )


class Runner:
    """Runs jobs over batches; what does not depend on the batch is computed once."""

    def __init__(
        self,
        proposals: CompleteProposals,
        predictions: Predictions,
        constants: Constants | None = None,
    ) -> None:
        self._proposals = proposals
        self.trees: LoggedTrees | str = "no trees were read"
        self._sent: dict[str, tuple[IntArray, IntArray]] = {}
        self._predictions = predictions
        self._constants = constants or Constants()
        self._survivals: dict[str, Survivals] = {}
        self._lengths: dict[str, Lengths] = {}

    @property
    def fold(self) -> IntArray:
        """Fold of each proposal."""
        return self._proposals.fold

    def missing(self, job: Job) -> str | None:
        """Return what the log lacks for a job, or None."""
        if job.policy.reads == "tree" and isinstance(self.trees, str):
            return f"{job.policy.name} is left out: {self.trees}"
        for name in base_predictors(job):
            if not self._predictions.has(name):
                return f"{job.name} is left out: the log does not record {name} on every draft"
        return None

    def prepare(self, job: Job) -> None:
        """Compute survivals or lengths, before threads share them."""
        if job.policy.rule is not None:
            if not (job.predictor or "").startswith(ONLINE):
                self._survival(job)
        elif isinstance(self.trees, LoggedTrees) and job.policy.reads == "tree":
            self._sent[job.name] = self.trees.send(job.length or 0)
        elif job.policy.reads != "nothing":
            self._lengths[job.name] = self._stop(job)

    def survival(self, name: str) -> Survivals:
        """Return the survivals (K, P) of a predictor."""
        if name not in self._survivals:
            self._survivals[name] = self._predictions.survival(name)
        return self._survivals[name]

    def truth(self) -> Survivals:
        """Return the labels as survivals (K, P)."""
        if "" not in self._survivals:
            self._survivals[""] = self._predictions.labels()
        return self._survivals[""]

    def run(
        self, job: Job, batch: Batch, cost: CostTable, cap: int | None
    ) -> tuple[IntArray, FloatArray]:
        """Return admitted drafts (steps, slots) and the time of each step, ms."""
        c, K = batch.concurrency, self._proposals.num_positions
        rule = job.policy.rule
        if job.name in self._sent:
            nodes = self._sent[job.name][0][batch.rows]
            return nodes, cost.step_ms(c, c + nodes.sum(axis=1))
        if rule is None:
            lengths = self._lengths.get(job.name) or fixed(job.length or 0, len(self._proposals))
            admitted, passes = lengths.admitted[batch.rows], lengths.passes[batch.rows]
            # the drafter goes on until the slowest request has stopped
            return admitted, cost.step_ms(c, c + admitted.sum(axis=1), passes.max(axis=1))
        step_ms = cost.step_ms(c, c + np.arange(c * K + 1))
        if cap is not None:
            rule = Rule(rule.lag, cap, rule.min_gain, rule.early_stop)
        if (job.predictor or "").startswith(ONLINE):
            admitted = self._run_online(job, batch, step_ms, rule)
        else:
            survival = self._survival(job)
            admitted = admit_adaptively(survival, self._proposals.age, batch.rows, step_ms, rule)
        return admitted, step_ms[admitted.sum(axis=1)]

    def outcome(self, job: Job, batch: Batch) -> Batch:
        """Return the batch with what the target accepts of this job's drafts."""
        if job.name not in self._sent:
            return batch
        return replace(batch, accepted=self._sent[job.name][1][batch.rows])

    def run_survivals(
        self, survivals: Survivals, batch: Batch, cost: CostTable, rule: Rule
    ) -> tuple[IntArray, FloatArray]:
        """Run adaptive verification by given survivals (K, P)."""
        c, K = batch.concurrency, self._proposals.num_positions
        step_ms = cost.step_ms(c, c + np.arange(c * K + 1))
        admitted = admit_adaptively(survivals, self._proposals.age, batch.rows, step_ms, rule)
        return admitted, step_ms[admitted.sum(axis=1)]

    def _survival(self, job: Job) -> Survivals:
        return self.truth() if job.predictor is None else self.survival(job.predictor)

    def _stop(self, job: Job) -> Lengths:
        proposals = self._proposals
        if job.policy.reads == "draw":
            drawn = expit(self._predictions.feature(_DRAWN))
            return draft_and_verify(drawn, proposals.accepted, proposals.age)
        prob = expit(self._predictions.log_odds(str(job.predictor)))
        rule = static_threshold if job.policy.name == "threshold" else rejection_threshold
        return rule(prob)

    def _run_online(self, job: Job, batch: Batch, step_ms: FloatArray, rule: Rule) -> IntArray:
        name = str(job.predictor)
        make = ESTIMATORS[name.removeprefix(ONLINE)].make
        feature = self._predictions.feature(online_feature(name))
        estimator = make(self._proposals.num_positions, self._constants)
        return admit_online(estimator, self._proposals.stream(feature), batch.rows, step_ms, rule)
