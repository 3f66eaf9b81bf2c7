"""Join verdicts to proposals, by slot, as a live engine delivers them. Plain numpy, no engine.

An engine keeps a request in a *slot* while it runs; the batch is reordered at every step, slots
are reused, requests are preempted, and the last proposal of a request is never graded. The
joiner mirrors that: one pending proposal per slot, which the slot's next verdict grades.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from draftlab.schema import Excluded

Array = np.ndarray[Any, Any]
Columns = dict[str, Any]
"""Columns of the log's drafts, masked where null."""

_NEVER = -1


@dataclass(frozen=True)
class Arrival:
    """A request enters a slot, for the first time or again after a preemption."""

    request: int
    """Key in the log."""
    slot: int
    excluded: int = 0
    """Bits of `Excluded` that hold for the whole request."""
    emitted: int = 0
    """Tokens it has emitted before."""
    prompt_tokens: int = 0
    max_output: int = 2**31 - 1
    """Tokens at which it ends."""
    min_output: int = 0
    """Tokens before which a stop token does not end it."""
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What the target said in one step; arrays over the rows of the batch."""

    step: int
    slots: Array
    num_sampled: Array
    """Accepted drafts + 1; 0 in the middle of a prompt."""
    num_rejected: Array
    """Drafts sent to the target and not accepted."""
    last_token: Array
    """Last token sampled, recovered or bonus."""
    num_scheduled: Array | None = None
    """Drafts that the scheduler sent along, before trimming; None where unknown."""
    target: dict[str, Array] = field(default_factory=dict)
    """[rows, K] columns of the target's side."""


@dataclass(frozen=True)
class Proposal:
    """The drafts of one step; arrays over the rows of the batch."""

    step: int
    slots: Array
    tokens: Array
    """[rows, K]; -1 where none was drafted."""
    offered: int
    """Positions that hold drafts."""
    columns: dict[str, Array] | None
    """[rows, K] features; None if they were dropped on the way."""


@dataclass(frozen=True)
class Outcome:
    """What a verdict brought."""

    drafts: Columns | None
    num_admitted: int
    num_accepted: int
    num_emitted: int
    unmatched: int
    """Requests that had drafts verified which the joiner has not seen."""


class Joiner:
    """Pending proposals of one engine replica.

    Parameters
    ----------
    num_slots : int
        Requests that the engine holds at once.
    num_positions : int
        K.
    """

    def __init__(self, num_slots: int, num_positions: int) -> None:
        self.K = num_positions
        self._request = np.full(num_slots, _NEVER, dtype=np.int64)
        self._excluded = np.zeros(num_slots, dtype=np.uint16)
        self._emitted = np.zeros(num_slots, dtype=np.int64)
        self._counted = np.ones(num_slots, dtype=bool)  # False once a verdict was lost
        self._max_output = np.zeros(num_slots, dtype=np.int64)
        self._min_output = np.zeros(num_slots, dtype=np.int64)
        self._prompt_tokens = np.zeros(num_slots, dtype=np.int64)
        self._stop_tokens = np.full((num_slots, 1), _NEVER, dtype=np.int64)
        self._reason: list[Literal["stop", "length"] | None] = [None] * num_slots
        self._ended = np.zeros(num_slots, dtype=bool)
        self._mid_prompt = np.zeros(num_slots, dtype=bool)
        # The pending proposal of each slot; step -1 where there is none.
        self._step = np.full(num_slots, _NEVER, dtype=np.int64)
        self._offered = np.zeros(num_slots, dtype=np.int64)
        self._output_index = np.zeros(num_slots, dtype=np.int64)
        self._proposal_excluded = np.zeros(num_slots, dtype=np.uint16)
        self._tokens = np.full((num_slots, num_positions), _NEVER, dtype=np.int64)
        self._columns: dict[str, Array] = {}

    def arrive(self, arrival: Arrival) -> Columns | None:
        """Put a request into a slot; return rows of the former owner that nothing will grade."""
        slot = arrival.slot
        rows = self.leave(slot)
        self._request[slot] = arrival.request
        self._excluded[slot] = arrival.excluded
        self._emitted[slot] = arrival.emitted
        self._counted[slot] = True
        self._max_output[slot] = arrival.max_output
        self._min_output[slot] = arrival.min_output
        self._prompt_tokens[slot] = arrival.prompt_tokens
        self._set_stop_tokens(slot, arrival.stop_tokens)
        self._reason[slot] = None
        self._ended[slot] = False
        self._mid_prompt[slot] = False
        return rows

    def leave(self, slot: int) -> Columns | None:
        """Free a slot; return the rows of its pending proposal, which nothing will grade."""
        rows = self._rows(np.array([slot]))
        self._step[slot] = _NEVER
        self._request[slot] = _NEVER
        return rows

    def output(self, slot: int) -> tuple[int | None, Literal["stop", "length"] | None]:
        """Return how many tokens the slot's request has emitted, and why it ended."""
        emitted = int(self._emitted[slot]) if self._counted[slot] else None
        return emitted, self._reason[slot]

    def running(self) -> list[tuple[int, int]]:
        """Return (slot, request) of every request in a slot."""
        return [(int(s), int(self._request[s])) for s in np.flatnonzero(self._request != _NEVER)]

    def mean_context(self, slots: Array) -> float | None:
        """Return the mean of prompt and emitted tokens over slots; None where unknown."""
        if not len(slots) or not self._counted[slots].all():
            return None
        return float(np.mean(self._prompt_tokens[slots] + self._emitted[slots]))

    def judge(self, verdict: Verdict) -> Outcome:
        """Grade the pending proposals of a step's batch; return their rows."""
        slots = verdict.slots
        accepted = np.maximum(verdict.num_sampled - 1, 0)
        admitted = accepted + verdict.num_rejected
        scheduled = admitted if verdict.num_scheduled is None else verdict.num_scheduled
        covered = (admitted > 0) | (scheduled > 0)
        kept = self._emit(verdict, accepted)
        rows = self._rows(slots, verdict, _Grades(accepted, admitted, covered, kept))
        unmatched = int(np.count_nonzero((admitted > 0) & (self._step[slots] == _NEVER)))
        self._step[slots] = _NEVER
        self._mid_prompt[slots] = verdict.num_sampled == 0
        return Outcome(
            drafts=rows,
            num_admitted=int(admitted.sum()),
            num_accepted=int(np.minimum(accepted, kept).sum()),
            num_emitted=int(kept.sum()),
            unmatched=unmatched,
        )

    def propose(self, proposal: Proposal) -> int:
        """Take a step's proposals; return how many cannot be logged: their request is unknown."""
        slots = proposal.slots
        known = self._request[slots] != _NEVER
        self._tokens[slots] = proposal.tokens
        if proposal.columns is None or proposal.offered == 0:
            self._step[slots] = _NEVER
            return int(np.count_nonzero(~known))
        self._step[slots] = np.where(known, proposal.step, _NEVER)
        self._offered[slots] = proposal.offered
        self._output_index[slots] = self._emitted[slots]
        self._proposal_excluded[slots] = (
            np.where(self._ended[slots], int(Excluded.AFTER_STOP), 0)
            | np.where(self._mid_prompt[slots], int(Excluded.PLACEHOLDER), 0)
        ).astype(np.uint16)
        for name, values in proposal.columns.items():
            if name not in self._columns:
                shape = self._tokens.shape
                self._columns[name] = np.full(shape, np.nan, dtype=np.float32)
            self._columns[name][slots] = values
        return int(np.count_nonzero(~known))

    def lose(self) -> int:
        """Forget every pending proposal after a lost verdict; return how many there were."""
        lost = int(np.count_nonzero(self._step != _NEVER))
        self._step[:] = _NEVER
        self._counted[:] = False
        return lost

    def pending(self) -> Columns | None:
        """Return the rows of all pending proposals, for a log that ends here, and forget them."""
        rows = self._rows(np.arange(len(self._step)))
        self._step[:] = _NEVER
        return rows

    def _set_stop_tokens(self, slot: int, tokens: tuple[int, ...]) -> None:
        missing = len(tokens) - self._stop_tokens.shape[1]
        if missing > 0:
            wider = ((0, 0), (0, missing))
            self._stop_tokens = np.pad(self._stop_tokens, wider, constant_values=_NEVER)
        self._stop_tokens[slot] = _NEVER
        self._stop_tokens[slot, : len(tokens)] = tokens

    def _emit(self, verdict: Verdict, accepted: Array) -> Array:
        """Count the tokens of a verdict up to the end of each request; return how many [rows].

        The engine samples on past a stop token and past max_tokens, and its scheduler cuts.
        """
        slots, sampled = verdict.slots, verdict.num_sampled
        place = np.arange(self.K + 1)
        emitted = np.column_stack((self._tokens[slots], np.full(len(slots), _NEVER)))
        emitted[np.arange(len(slots)), np.minimum(accepted, self.K)] = verdict.last_token
        before = self._emitted[slots]
        is_stop = (emitted[:, :, None] == self._stop_tokens[slots][:, None, :]).any(-1)
        is_stop &= (emitted >= 0) & (place < sampled[:, None])
        is_stop &= before[:, None] + place + 1 >= self._min_output[slots][:, None]
        at_stop = np.where(is_stop.any(1), is_stop.argmax(1) + 1, self.K + 2)
        left = np.maximum(self._max_output[slots] - before, 0)
        kept = np.minimum(np.minimum(sampled, left), at_stop)
        kept[self._ended[slots]] = 0
        self._emitted[slots] = before + kept
        self._note_ends(slots, stopped=kept == at_stop)
        return np.asarray(kept)

    def _note_ends(self, slots: Array, *, stopped: Array) -> None:
        full = self._emitted[slots] >= self._max_output[slots]
        ends = (stopped | full) & ~self._ended[slots] & self._counted[slots]
        for row in np.flatnonzero(ends):
            self._reason[slots[row]] = "stop" if stopped[row] else "length"
        self._ended[slots] |= ends

    def _rows(
        self, slots: Array, verdict: Verdict | None = None, grades: _Grades | None = None
    ) -> Columns | None:
        """Return the rows of the pending proposals of slots, ordered by (step, slot, position)."""
        order = np.lexsort((slots, self._step[slots]))
        order = order[self._step[slots[order]] != _NEVER]
        if not len(order):
            return None
        owners = slots[order]
        row, position = np.nonzero(np.arange(self.K) < self._offered[owners][:, None])
        slot = owners[row]
        columns: Columns = {
            "request": self._request[slot],
            "step": self._step[slot],
            "slot": slot.astype(np.int32),
            "position": position.astype(np.int16),
            "output_index": np.ma.array(self._output_index[slot], mask=~self._counted[slot]),
            "token": self._tokens[slot, position],
            "excluded": self._excluded[slot] | self._proposal_excluded[slot],
            **{name: values[slot, position] for name, values in self._columns.items()},
        }
        if verdict is None or grades is None:
            return columns | _ungraded(len(slot))
        columns["excluded"] |= grades.after_stop(order[row], position)
        return columns | {
            **grades.labels(order[row], position, verdict.step),
            **{name: values[order[row], position] for name, values in verdict.target.items()},
        }


@dataclass(frozen=True)
class _Grades:
    """Verdicts of a batch, arrays over its rows."""

    accepted: Array
    admitted: Array
    covered: Array
    kept: Array

    def labels(self, row: Array, position: Array, step: int) -> Columns:
        covered = self.covered[row]
        admitted = covered & (position < self.admitted[row])
        observed = admitted & (position <= self.accepted[row])
        return {
            "verify_step": np.ma.array(np.full(len(row), step), mask=~covered),
            "admitted": admitted,
            "accepted": np.ma.array(position < self.accepted[row], mask=~observed),
        }

    def after_stop(self, row: Array, position: Array) -> Array:
        """Behind the token that ended the request nothing was emitted, whatever the verdict."""
        kept = self.kept[row]
        after = self.covered[row] & (kept <= self.accepted[row]) & (position >= kept)
        return np.where(after, int(Excluded.AFTER_STOP), 0).astype(np.uint16)


def _ungraded(n: int) -> Columns:
    return {
        "verify_step": np.ma.masked_all(n, dtype=np.int64),
        "admitted": np.zeros(n, dtype=bool),
        "accepted": np.ma.masked_all(n, dtype=bool),
    }
