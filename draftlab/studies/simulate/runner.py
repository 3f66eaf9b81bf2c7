"""How a policy runs over batches of logged proposals."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from draftlab.online.rivals import ESTIMATORS
from draftlab.online.vllm import Constants
from draftlab.studies.simulate.batches import admit_adaptively, admit_online

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab._types import FloatArray, IntArray
    from draftlab.policies.cost import CostTable
    from draftlab.studies.simulate.batches import Rule, Survivals
    from draftlab.studies.simulate.frontier import Batch
    from draftlab.studies.simulate.logged_trees import LoggedTrees
    from draftlab.studies.simulate.policies import Job, Sent
    from draftlab.studies.simulate.proposals import CompleteProposals, Predictions


class Runner:
    """Runs jobs over batches; what does not depend on the batch is computed once."""

    def __init__(
        self,
        proposals: CompleteProposals,
        predictions: Predictions,
        read_trees: Callable[[], LoggedTrees | str] = lambda: "no trees were read",
        constants: Constants | None = None,
    ) -> None:
        self.proposals = proposals
        self.predictions = predictions
        self._read_trees = read_trees
        self._constants = constants or Constants()
        self._sent: dict[Job, Sent] = {}
        self._survivals: dict[str | None, Survivals] = {}

    @cached_property
    def trees(self) -> LoggedTrees | str:
        """Logged trees of the proposals; a sentence where they are of no use."""
        return self._read_trees()

    def prepare(self, job: Job) -> str | None:
        """Compute what threads share of a job; return what the log lacks for it, or None."""
        for name in job.parts:
            if not self.predictions.has(name):
                return f"{job.name} is left out: the log does not record {name} on every draft"
        if job.policy.stop is not None:
            sent = job.policy.stop(self, job)
            if isinstance(sent, str):
                return f"{job.policy.name} is left out: {sent}"
            self._sent[job] = sent
        elif job.source is None or job.source.estimator is None:
            self.survival(job.predictor)
        return None

    def survival(self, name: str | None) -> Survivals:
        """Return the survivals (K, P) of a predictor; without one, those of the labels."""
        if name not in self._survivals:
            self._survivals[name] = (
                self.predictions.labels() if name is None else self.predictions.survival(name)
            )
        return self._survivals[name]

    def run(
        self, job: Job, batch: Batch, cost: CostTable, cap: int | None
    ) -> tuple[IntArray, FloatArray]:
        """Return admitted drafts (steps, slots) and the time of each step, ms."""
        if job.policy.rule is None:
            return self._run_alone(self._sent[job], batch, cost)
        rule = job.policy.rule if cap is None else replace(job.policy.rule, cap=cap)
        if job.source is None or job.source.estimator is None:
            return self.run_survivals(self.survival(job.predictor), batch, cost, rule)
        [feature] = job.source.parts
        stream = self.proposals.stream(self.predictions.feature(feature))
        make = ESTIMATORS[job.source.estimator].make
        estimator = make(self.proposals.num_positions, self._constants)
        step_ms = self._step_ms(batch, cost)
        admitted = admit_online(estimator, stream, batch.rows, step_ms, rule)
        return admitted, step_ms[admitted.sum(axis=1)]

    def outcome(self, job: Job, batch: Batch) -> Batch:
        """Return the batch with what the target accepts of this job's drafts."""
        sent = self._sent.get(job)
        if sent is None or sent.accepted is None:
            return batch
        return replace(batch, accepted=sent.accepted[batch.rows])

    def run_survivals(
        self, survivals: Survivals, batch: Batch, cost: CostTable, rule: Rule
    ) -> tuple[IntArray, FloatArray]:
        """Run adaptive verification by given survivals (K, P)."""
        step_ms = self._step_ms(batch, cost)
        admitted = admit_adaptively(survivals, self.proposals.age, batch.rows, step_ms, rule)
        return admitted, step_ms[admitted.sum(axis=1)]

    def _run_alone(self, sent: Sent, batch: Batch, cost: CostTable) -> tuple[IntArray, FloatArray]:
        c, admitted = batch.concurrency, sent.admitted[batch.rows]
        # the drafter goes on until the slowest request has stopped
        passes = None if sent.passes is None else sent.passes[batch.rows].max(axis=1)
        return admitted, cost.step_ms(c, c + admitted.sum(axis=1), passes)

    def _step_ms(self, batch: Batch, cost: CostTable) -> FloatArray:
        """Return the time of a step that verifies 0.. drafts."""
        c = batch.concurrency
        return cost.step_ms(c, c + np.arange(c * self.proposals.num_positions + 1))
