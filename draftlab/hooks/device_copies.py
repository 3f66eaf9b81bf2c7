"""Bring small tensors from the device to the host without making the engine wait.

A copy goes on a side stream into one of a ring of pinned buffers and is marked by an event; the
thread that writes the log waits for the event, never the engine. When the ring is full, the copy
is refused and the caller counts what it lost. On a CPU the copies are plain.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor


class PinnedRing:
    """A fixed number of host buffers for tensors of one shape.

    Parameters
    ----------
    depth : int
        Copies that may be under way or unread at once.
    shape : tuple of int
        Largest tensor; a shorter first axis is fine.
    dtype, device
        Of the tensors.
    """

    def __init__(
        self, depth: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        import torch

        self._cuda = device.type == "cuda"
        self._lock = threading.Lock()
        # Pinned memory is allocated here, at start-up, as that stalls the device.
        places = [
            torch.empty(shape, dtype=dtype, pin_memory=True) if self._cuda else None
            for _ in range(depth)
        ]
        self._free: deque[Tensor | None] = deque(places)
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def copy(self, source: Tensor) -> PendingCopy | None:
        """Start a copy of a tensor that nobody will change; None when the ring is full."""
        with self._lock:
            if not self._free:
                return None
            place = self._free.popleft()
        if place is None:
            return PendingCopy(self, None, source.detach().to("cpu", copy=True), None)
        return self._copy_aside(source, place)

    def _copy_aside(self, source: Tensor, place: Tensor) -> PendingCopy:
        import torch

        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(source.device))
        # A blocking event lets the waiting thread sleep instead of spinning on a core.
        done = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream):
            ready.wait(self._stream)
            place[: len(source)].copy_(source, non_blocking=True)
            done.record(self._stream)
        return PendingCopy(self, place, source, done)

    def release(self, place: Tensor | None) -> None:
        """Give a place back."""
        with self._lock:
            self._free.append(place)


class PendingCopy:
    """A copy under way. Keeps its source alive until it is read."""

    def __init__(self, ring: PinnedRing, place: Tensor | None, source: Tensor, done: Any) -> None:
        self._ring = ring
        self._place = place
        self._source: Tensor | None = source
        self._done = done

    def take(self) -> np.ndarray[Any, Any]:
        """Wait for the copy, return its content and free its place. Call once."""
        source, self._source = self._source, None
        assert source is not None, "a ticket is taken once"
        if self._done is None:
            values: np.ndarray[Any, Any] = source.numpy()
        else:
            self._done.synchronize()
            assert self._place is not None
            values = self._place[: len(source)].numpy().copy()
        self._ring.release(self._place)
        return values
