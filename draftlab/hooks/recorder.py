"""The thread behind a hook: takes what the engine hands over, joins it, and writes the log."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.hooks.join import Arrival, Joiner, Proposal, Verdict
from draftlab.hooks.plan import TARGET
from draftlab.hooks.settings import LOGGER
from draftlab.log.writer import LogWriter
from draftlab.schema import Excluded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from draftlab.hooks.device_copies import PendingCopy
    from draftlab.hooks.settings import HookSettings

logger = logging.getLogger(LOGGER)

_IDS = 4
"""Columns of the integer copy ahead of the K draft tokens: slot, sampled, rejected, last token."""


@dataclass(frozen=True)
class RequestEvent:
    """A request entered a slot."""

    arrival: Arrival
    row: dict[str, Any]
    """Columns of `requests` that the hook knows without reading the prompt."""
    prompt: list[int] | None
    """Read once, for a salted hash that tells equal prompts; never kept."""
    new: bool


@dataclass(frozen=True)
class EndEvent:
    """Requests left their slots."""

    finished: tuple[tuple[int | None, int, bool], ...]
    """(slot or None if preempted before, request, whether a stop string may have ended it)."""
    preempted: tuple[int, ...]
    """Slots of requests that will come back."""


@dataclass(frozen=True)
class StepEvent:
    """One engine step: a verdict and, mostly, a proposal."""

    step: int
    row: dict[str, Any]
    """Columns of `steps` known on the host."""
    slots: np.ndarray[Any, Any] | None
    """Slots of the batch as the host knows them; the device's own come with ``integers``."""
    num_scheduled: np.ndarray[Any, Any] | None
    offered: int | None
    """Draft positions asked for; None when nothing was proposed."""
    integers: PendingCopy | None
    """[rows, 4 + K]; None when the ring was full: the verdict is lost."""
    floats: PendingCopy | None
    """[rows, K, columns]; None when the ring was full: the proposals are dropped."""
    float_names: tuple[str, ...]
    draft_ms: Callable[[], float] | None = None


@dataclass
class Counts:
    """What a hook could not log."""

    dropped: int = 0
    unmatched: int = 0
    """Drafts of requests that the hook had not seen."""
    reordered: int = 0
    """Steps whose verdict and proposal named different batches."""


@dataclass
class _State:
    joiner: Joiner
    writer: LogWriter
    counts: Counts = field(default_factory=Counts)


class Recorder:
    """Write one run from the events of an engine.

    `put` never blocks and never raises on account of the disk: all work is done on a thread of
    its own. The first error ends the run, is logged once and shows as ``alive`` False.

    Parameters
    ----------
    settings : HookSettings
    metadata : mapping
        Keys of run.json.
    num_slots, num_positions : int
        Requests at once, and K.
    """

    def __init__(
        self,
        settings: HookSettings,
        metadata: Mapping[str, Any],
        num_slots: int,
        num_positions: int,
    ) -> None:
        self.alive = True
        self.counts = Counts()
        self._settings = settings
        self._metadata = metadata
        self._shape = (num_slots, num_positions)
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="draftlab-hook", daemon=True)
        self._thread.start()

    def put(self, event: RequestEvent | EndEvent | StepEvent) -> None:
        """Hand over an event; the order of calls is the order of the engine."""
        if self.alive:
            self._events.put(event)

    def stop(self) -> None:
        """Ask for the end of the run without waiting for it."""
        self.alive = False
        self._events.put(None)

    def close(self, timeout: float | None = 30.0) -> None:
        """End the run and wait until it is on the disk. Safe to call twice."""
        self.stop()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            writer = LogWriter(self._settings.log, self._metadata)
        except Exception as error:  # the engine must go on, whatever it is
            self._give_up(error)
            return
        state = _State(Joiner(*self._shape), writer, self.counts)
        handlers: dict[type, Callable[[_State, Any], None]] = {
            RequestEvent: self._request,
            EndEvent: self._end,
            StepEvent: self._step,
        }
        try:
            for event in iter(self._events.get, None):
                handlers[type(event)](state, event)
        except Exception as error:
            self._give_up(error)
        self._finish(state)

    def _give_up(self, error: Exception) -> None:
        self.alive = False
        logger.warning("draftlab stops logging drafts, the engine goes on: %r", error)

    def _finish(self, state: _State) -> None:
        try:
            self._flush(state, state.joiner.pending())
            self._end_ended(state)
            state.writer.close()
        except Exception as error:
            self._give_up(error)
        if self.counts.unmatched or self.counts.reordered:
            logger.warning("draftlab: some drafts could not be joined: %s", self.counts)

    def _request(self, state: _State, event: RequestEvent) -> None:
        self._flush(state, state.joiner.arrive(event.arrival))
        if not event.new:
            return
        row = dict(event.row)
        if event.prompt is not None:
            row["group"] = f"{row['dataset']}/{self._settings.hash_tokens(event.prompt)}"
        state.writer.request(event.arrival.request, **row)

    def _end(self, state: _State, event: EndEvent) -> None:
        for slot in event.preempted:
            self._flush(state, state.joiner.leave(slot))
        for place, request, stop_strings in event.finished:
            tokens, reason = (None, None) if place is None else state.joiner.output(place)
            # A stop string is found behind the detokenizer, out of sight of the worker.
            state.writer.request(
                request,
                output_tokens=tokens,
                finish_reason=reason or ("stop" if stop_strings else "abort"),
            )
            if place is not None:
                self._flush(state, state.joiner.leave(place))

    def _end_ended(self, state: _State) -> None:
        """Close the rows of requests that ended in the last step: no later one says so."""
        for slot, request in state.joiner.running():
            tokens, reason = state.joiner.output(slot)
            if reason is not None:
                state.writer.request(request, output_tokens=tokens, finish_reason=reason)

    def _flush(self, state: _State, rows: Mapping[str, Any] | None) -> None:
        if rows is not None:
            state.writer.step(None, self._public(rows))

    def _step(self, state: _State, event: StepEvent) -> None:
        joiner, row = state.joiner, dict(event.row)
        if event.integers is None:
            lost = joiner.lose() + self._proposed(event)
            self._drop(state, event, {"step": event.step, "num_dropped": lost}, lost)
            return
        integers = event.integers.take()
        floats = event.floats.take() if event.floats is not None else None
        slots = integers[:, 0].astype(np.int64)
        if event.slots is not None and not np.array_equal(event.slots, slots):
            state.counts.reordered += 1
        columns = _columns(floats, event.float_names)
        target = {name: columns.pop(name) for name in TARGET if name in columns}
        outcome = joiner.judge(
            Verdict(
                event.step,
                slots,
                num_sampled=integers[:, 1].astype(np.int64),
                num_rejected=integers[:, 2].astype(np.int64),
                last_token=integers[:, 3].astype(np.int64),
                num_scheduled=event.num_scheduled,
                target=target,
            )
        )
        state.counts.unmatched += outcome.unmatched
        row |= {
            "num_sampling_requests": int(np.count_nonzero(integers[:, 1])),
            "num_admitted": outcome.num_admitted,
            "num_accepted": outcome.num_accepted,
            "num_emitted": outcome.num_emitted,
            "mean_context_tokens": joiner.mean_context(slots[integers[:, 1] > 0]),
        }
        if event.offered is not None:
            dropped = self._propose(state, event, slots, integers[:, _IDS:], columns)
            row["num_proposed"] = len(slots) * event.offered
            row["num_dropped"] = dropped
            state.counts.dropped += dropped
        if event.draft_ms is not None:
            row["draft_ms"] = event.draft_ms()
        drafts = None if outcome.drafts is None else self._public(outcome.drafts)
        state.writer.step(row, drafts)

    def _propose(
        self,
        state: _State,
        event: StepEvent,
        slots: np.ndarray[Any, Any],
        tokens: np.ndarray[Any, Any],
        columns: dict[str, np.ndarray[Any, Any]],
    ) -> int:
        """Hand a step's proposals to the joiner; return how many were dropped on the way."""
        assert event.offered is not None
        lost = event.floats is None and bool(event.float_names)
        state.counts.unmatched += state.joiner.propose(
            Proposal(event.step, slots, tokens, event.offered, None if lost else columns)
        )
        return len(slots) if lost else 0

    @staticmethod
    def _proposed(event: StepEvent) -> int:
        proposed = event.offered is not None and event.slots is not None
        return len(event.slots) if proposed and event.slots is not None else 0

    def _drop(self, state: _State, event: StepEvent, row: dict[str, Any], lost: int) -> None:
        if event.floats is not None:
            event.floats.take()
        state.counts.dropped += lost
        state.writer.step(event.row | row)

    def _public(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rows as they go to the disk."""
        columns = dict(rows)
        token = columns.pop("token")
        if self._settings.tokens:
            columns["token"] = np.ma.array(token, mask=token < 0)
        if "logit_qmax" not in columns:  # no logits survive: the estimator's own feature stands in
            columns["logit_qmax"] = columns.get(
                "live_feature", np.full(len(token), np.nan, dtype=np.float32)
            )
            columns["logit_q_sampled"] = columns["logit_qmax"]  # the drawn token is the top one
        else:
            nonfinite = np.isnan(columns["logit_qmax"])
            columns["excluded"] = columns["excluded"] | np.where(
                nonfinite, int(Excluded.NONFINITE), 0
            ).astype(np.uint16)
        return columns


def _columns(
    floats: np.ndarray[Any, Any] | None, names: tuple[str, ...]
) -> dict[str, np.ndarray[Any, Any]]:
    if floats is None:
        return {}
    return {name: floats[:, :, i] for i, name in enumerate(names)}
