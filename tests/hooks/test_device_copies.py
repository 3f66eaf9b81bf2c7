"""The ring of copies, as it is on a CPU: content, order, and what a full ring refuses."""

from __future__ import annotations

import pytest
import torch

from draftlab.hooks.device_copies import PinnedRing


def test_a_copy_holds_what_stood_there_when_it_was_made() -> None:
    ring = PinnedRing(2, (3, 2), torch.float32, torch.device("cpu"))
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    copy = ring.copy(source)
    assert copy is not None
    source.zero_()
    assert copy.take().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(AssertionError, match="taken once"):
        copy.take()


def test_a_full_ring_refuses_until_a_copy_is_taken() -> None:
    ring = PinnedRing(2, (1,), torch.int64, torch.device("cpu"))
    first, second = (ring.copy(torch.tensor([n])) for n in (1, 2))
    assert first is not None
    assert second is not None
    assert ring.copy(torch.tensor([3])) is None
    assert second.take().tolist() == [2]
    fourth = ring.copy(torch.tensor([4]))
    assert fourth is not None
    assert ring.copy(torch.tensor([5])) is None
    assert [first.take().tolist(), fourth.take().tolist()] == [[1], [4]]
