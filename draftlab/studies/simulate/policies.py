"""The policies by name, the predictors that they may be given, and jobs made of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from scipy.special import expit

from draftlab.errors import InputError
from draftlab.features import lossless
from draftlab.online.rivals import ESTIMATORS
from draftlab.policies.stopping import (
    draft_and_verify,
    fixed,
    rejection_threshold,
    static_threshold,
)
from draftlab.policies.tree import NUM_NODES
from draftlab.predictors.baselines import ADOPTED, PREDICTORS
from draftlab.predictors.survival import SURVIVAL
from draftlab.studies.simulate.batches import Rule
from draftlab.studies.simulate.logged_trees import COLUMNS as TREE_COLUMNS
from draftlab.studies.simulate.proposals import STS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from draftlab._types import FloatArray, IntArray
    from draftlab.features import Drafting
    from draftlab.policies.stopping import Lengths
    from draftlab.predictors.baselines import Predictor
    from draftlab.studies.simulate.runner import Runner

Reads = Literal["nothing", "survival", "conditional", "draw", "tree", "truth"]

ONLINE = "online-"
"""Predictors ``online-NAME`` are the estimators of a replay, driving themselves."""
SCALED = ("confidence", "qmax")
"""Predictors that may stand behind sequential temperature scaling, as ``confidence-sts``."""
CEILING = "av/oracle"
"""Job that no other lossless predictor beats under vLLM's rule."""
_DRAWN = "logit_q_sampled"


class Sent(NamedTuple):
    """What is sent of each proposal, whatever else is in the batch; (P,) int64 each."""

    admitted: IntArray
    """Drafts, or nodes of a tree."""
    passes: IntArray | None = None
    """Draft passes made; None: all."""
    accepted: IntArray | None = None
    """Drafts that the target accepts if these are sent; None: those of the chain."""


@dataclass(frozen=True)
class Policy:
    """A way to choose how many drafts are verified; it has either a ``rule`` or a ``stop``."""

    name: str
    doc: str
    reads: Reads
    """``survival`` and ``conditional``: of a predictor, which the user names."""
    rule: Rule | None = None
    """Of those that share a budget among requests."""
    stop: Callable[[Runner, Job], Sent | str] | None = None
    """Of those that end each proposal on its own; a sentence where the log does not allow it."""
    behind: bool = False
    """The draft that stops is verified: the decision is on the next one, so that it may read what
    was drawn."""
    parts: tuple[str, ...] = ()
    """Conditional predictors that it reads whatever the user names."""
    columns: tuple[str, ...] = ()
    """Raw columns that it reads besides."""
    lengths: Callable[[int], Iterable[int]] | None = None
    """Lengths that it is run with, from K; None: it finds its own."""
    unit: str | None = None
    """What a length counts, if its jobs are named by it."""


def _fixed(runner: Runner, job: Job) -> Sent:
    return Sent(*fixed(job.length or 0, len(runner.proposals)))


def _by_prediction(rule: Callable[[FloatArray], Lengths]) -> Callable[[Runner, Job], Sent]:
    """Return a stop that follows the conditional predictions (P, K) of the job's predictor."""

    def stop(runner: Runner, job: Job) -> Sent:
        return Sent(*rule(expit(runner.predictions.log_odds(str(job.predictor)))))

    return stop


def _draft_and_verify(runner: Runner, _: Job) -> Sent:
    drawn = expit(runner.predictions.feature(_DRAWN))
    return Sent(*draft_and_verify(drawn, runner.proposals.accepted, runner.proposals.age))


def _send_nodes(runner: Runner, job: Job) -> Sent | str:
    trees = runner.trees
    if isinstance(trees, str):
        return trees
    nodes, accepted = trees.send(job.length or 0)
    return Sent(nodes, accepted=accepted)


def _tree_sizes(num_positions: int) -> Iterable[int]:
    return sorted({*(num_positions * n for n in (1, 2, 4)), NUM_NODES - 1})


POLICIES: dict[str, Policy] = {
    p.name: p
    for p in (
        Policy("fixed", "the same number of drafts for everyone", "nothing", stop=_fixed,
               lengths=lambda num_positions: range(num_positions + 1)),
        Policy("av", "vLLM's adaptive verification: sized by confidences a step old", "survival",
               Rule()),
        Policy("av-gain", "TensorRT-LLM: the same, trims only for a predicted gain of 4 %",
               "survival", Rule(min_gain=0.04)),
        Policy("dspark", "DSpark algorithm 1: this step's confidences, stop at the first fall",
               "survival", Rule(lag=0, early_stop=True)),
        Policy("dspark-deployed", "DSpark as deployed: confidences two steps old", "survival",
               Rule(lag=2)),
        Policy("threshold", "end before the first prediction under 0.5", "conditional",
               stop=_by_prediction(static_threshold)),
        Policy("specdec", "SpecDec++: stop once a rejection is likelier than 0.3", "conditional",
               stop=_by_prediction(rejection_threshold), behind=True),
        Policy("draft-verify", "Draft & Verify: stop behind a token under an adaptive threshold",
               "draw", stop=_draft_and_verify, behind=True, parts=(_DRAWN,)),
        Policy("eagle2", "EAGLE-2: the nodes of a logged tree with the largest product of q",
               "tree", stop=_send_nodes, columns=TREE_COLUMNS, lengths=_tree_sizes, unit="nodes"),
        Policy("clairvoyant", "ceiling: knows every label before it verifies", "truth",
               Rule(lag=0)),
    )
}  # fmt: skip


class Source(NamedTuple):
    """What a predictor of survival is made of."""

    parts: tuple[str, ...]
    """Conditional predictors."""
    decides: str
    """The one of them whose factor at k decides on x_k."""
    estimator: str | None = None
    """Online estimator that learns from what it admits itself; None: fitted beforehand."""


def find_source(predictor: str) -> Source:
    """Return what a predictor is made of, by its name.

    Examples
    --------
    >>> find_source("hybrid")
    Source(parts=('logit_q_sampled', 'logit_qmax'), decides='logit_qmax', estimator=None)
    >>> find_source("online-vllm").parts
    ('logit_qmax',)
    """
    if predictor.startswith(ONLINE):
        estimator = predictor.removeprefix(ONLINE)
        feature = ESTIMATORS[estimator].feature or ADOPTED
        return Source((feature,), feature, estimator)
    if predictor in SURVIVAL:
        both = SURVIVAL[predictor]
        return Source((both.drawn, both.at_draw), both.at_draw)
    base = predictor.removesuffix(STS)
    return Source((base,), base)


class Job(NamedTuple):
    """A policy with its predictor, ready to run."""

    policy: Policy
    predictor: str | None
    length: int | None
    """Drafts of the fixed policy; of a tree, the nodes sent at most."""
    decides: tuple[str, ...]
    """Raw columns of what decides on x_k: the predictor's factor at k."""

    @property
    def name(self) -> str:
        """Policy, policy/predictor, or policy with its nodes."""
        return name_job(self.policy, self.predictor, self.length)

    @property
    def is_fixed(self) -> bool:
        """Whether it is of the lengths that others are compared with."""
        return self.policy.reads == "nothing"

    @property
    def source(self) -> Source | None:
        """What its predictor is made of."""
        return None if self.predictor is None else find_source(self.predictor)

    @property
    def parts(self) -> tuple[str, ...]:
        """Conditional predictors that it is made of."""
        return self.policy.parts + (() if self.source is None else self.source.parts)

    def lossless(self, drafting: Drafting) -> bool:
        """Return whether the policy keeps the target's distribution, derived from what it reads.

        Stopping behind a token decides on the next one and may read what was drawn. A budget
        may be sized by old confidences, or by the best survivals of this step up to the first
        fall; both keep what is lossless in the predictor.
        """
        if self.policy.reads == "truth":
            return False
        if self.source is None or self.policy.behind:
            return True
        return lossless(self.decides, drafting)


def name_job(policy: Policy, predictor: str | None, length: int | None) -> str:
    """Return ``POLICY``, ``POLICY/PREDICTOR``, or the policy with its nodes."""
    if policy.unit is not None:
        return f"{policy.name} of {length} {policy.unit}"
    return policy.name if predictor is None else f"{policy.name}/{predictor}"


def make_jobs(
    specs: Sequence[str], num_positions: int, known: Mapping[str, Predictor] = PREDICTORS
) -> list[Job]:
    """Return the jobs of specifications ``fixed``, ``POLICY`` or ``POLICY/PREDICTOR``.

    ``known`` are the predictors of conditional acceptance, those of a plugin among them.

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
            check_predictor(predictor, policy, known)
        decides = tuple(known[find_source(predictor).decides].columns) if predictor else ()
        lengths = [None] if policy.lengths is None else policy.lengths(num_positions)
        jobs += [Job(policy, predictor or None, length, decides) for length in lengths]
    return jobs


def check_predictor(name: str, policy: Policy, known: Iterable[str]) -> None:
    """Raise InputError for a name that this policy cannot use."""
    names = [*known, *(f"{n}{STS}" for n in SCALED)]
    if policy.reads == "survival":
        names += [*SURVIVAL, *(f"{ONLINE}{n}" for n in ESTIMATORS)]
    if name not in names:
        raise InputError(
            f"unknown predictor {name!r} of policy {policy.name}; known: {', '.join(names)}"
        )
