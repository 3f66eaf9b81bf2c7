"""Rehearse an engine: its slots, queue and prompts, with logged proposals in place of models.

Unlike the batches of a simulation this follows the engine's own schedule step by step: new
requests are read in while others are verified, and the batch drains at the end. It drives the
same object that trims in the engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftlab.studies.simulate.frontier import emitted_tokens

if TYPE_CHECKING:
    from draftlab._types import IntArray
    from draftlab.policies.adaptive import AdaptiveVerification


@dataclass(frozen=True)
class Requests:
    """Logged requests, in the order in which the engine took them, (R,) int64 each."""

    starts: IntArray
    """First proposal."""
    lengths: IntArray
    """Number of proposals, 0 for a request that ended with its first token. One that trimming
    slows down goes through them again."""
    prompt_tokens: IntArray
    output_tokens: IntArray


@dataclass(frozen=True)
class Drafts:
    """Logged proposals."""

    columns: dict[str, Any]
    """Features, (P, K) each."""
    accepted: IntArray
    """(P,): drafts emitted if all are sent."""
    bonus: IntArray
    """(P,)."""
    labelled: IntArray
    """(P,): positions whose label exists if all are sent."""


class Rehearsed(NamedTuple):
    """One entry per verified proposal, then one per step; (n,) each."""

    request: IntArray
    verified: IntArray
    emitted: IntArray
    step_ms: np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class _Slot:
    request: int
    left: int
    """Tokens that it has still to emit."""
    turn: int = 0


def rehearse(
    requests: Requests, drafts: Drafts, admission: AdaptiveVerification, *, slots: int
) -> Rehearsed:
    """Run all requests through an engine with so many slots.

    Parameters
    ----------
    requests : Requests
    drafts : Drafts
    admission : AdaptiveVerification
        Fresh; it is changed.
    slots : int

    Returns
    -------
    Rehearsed
        Times are those of the admission's cost table.
    """
    queue = deque(range(len(requests.starts)))
    live: list[_Slot | None] = [None] * slots
    columns: dict[str, Any] | None = None
    graded: list[tuple[IntArray, IntArray, IntArray]] = []
    times: list[float] = []
    while queue or any(live):
        running = [slot for slot in live if slot is not None]
        new = _arrive(live, queue, requests)
        size = len(running) + len(new)
        tokens = len(running) + int(sum(requests.prompt_tokens[s.request] for s in new))
        labels = None
        if running:
            assert columns is not None
            labels, admitted, kept = _verify(
                running, columns, requests, drafts, admission, (size, tokens)
            )
            graded.append((np.array([s.request for s in running]), admitted, kept))
            tokens += int(admitted.sum())
        admission.learn(labels)
        for slot in new:
            # the first token comes with the prompt; without a logged proposal nothing follows
            slot.left = slot.left - 1 if requests.lengths[slot.request] else 0
        live = [None if slot is None or slot.left <= 0 else slot for slot in live]
        remaining = [slot for slot in live if slot is not None]
        columns = _propose(remaining, requests, drafts, admission) if remaining else None
        times.append(float(admission.cost.step_ms(size, tokens)))
    request, verified, emitted = (np.concatenate(part) for part in zip(*graded, strict=True))
    return Rehearsed(request, verified, emitted, np.array(times))


def _arrive(live: list[_Slot | None], queue: deque[int], requests: Requests) -> list[_Slot]:
    new = []
    for index, slot in enumerate(live):
        if slot is None and queue:
            request = queue.popleft()
            live[index] = _Slot(request, int(requests.output_tokens[request]))
            new.append(live[index])
    return [slot for slot in new if slot is not None]


def _rows(slots: list[_Slot], requests: Requests) -> IntArray:
    """Return the pending proposal of each slot."""
    return np.array(
        [requests.starts[s.request] + (s.turn - 1) % requests.lengths[s.request] for s in slots],
        dtype=np.int64,
    )


def _verify(
    running: list[_Slot],
    columns: dict[str, Any],
    requests: Requests,
    drafts: Drafts,
    admission: AdaptiveVerification,
    sizes: tuple[int, int],
) -> tuple[dict[str, Any], IntArray, IntArray]:
    """Take the verdicts; return labelled columns, and admitted and emitted by slot."""
    sampling_requests, non_draft_tokens = sizes
    rows = _rows(running, requests)
    admitted = admission.admit(
        columns,
        num_sampling_requests=sampling_requests,
        num_non_draft_tokens=non_draft_tokens,
    ).lengths
    emitted = emitted_tokens(admitted, drafts.accepted[rows], drafts.bonus[rows])
    left = np.array([slot.left for slot in running])
    # a proposal that ended its request in the log must not stall it here
    emitted = np.minimum(np.maximum(emitted, 1), left)
    for slot, count in zip(running, emitted.tolist(), strict=True):
        slot.left -= count
    position = np.arange(admission.num_positions)
    seen = position < np.minimum(admitted, drafts.labelled[rows])[:, None]
    label = position < drafts.accepted[rows][:, None]
    return columns | {"accepted": np.ma.array(label, mask=~seen).ravel()}, admitted, emitted


def _propose(
    slots: list[_Slot], requests: Requests, drafts: Drafts, admission: AdaptiveVerification
) -> dict[str, Any]:
    for slot in slots:
        slot.turn += 1
    rows = _rows(slots, requests)
    K = admission.num_positions
    columns: dict[str, Any] = {
        "request": np.repeat([slot.request for slot in slots], K),
        "position": np.tile(np.arange(K), len(slots)),
    }
    columns |= {name: values[rows].ravel() for name, values in drafts.columns.items()}
    return columns | admission.predict(columns)
