"""The rehearsal of an engine's schedule, counted by hand."""

from __future__ import annotations

import numpy as np

from draftlab.policies.adaptive import make_admission
from draftlab.policies.cost import CostTable, Curve
from draftlab.studies.simulate.rehearsal import Drafts, Requests, rehearse

K = 2
CHEAP = CostTable("cheap", "model", verify=Curve((0, 100), (10.0, 10.2)))


def test_two_requests_in_one_slot_by_hand() -> None:
    """Request 0 emits 1 + 3 + 2 tokens in three steps, then request 1 is read in and ends at once.

    Everything is sent: the cost hardly grows. Steps: read 0; verify; verify (ends); read 1.
    """
    requests = Requests(
        starts=np.array([0, 2]),
        lengths=np.array([2, 0]),
        prompt_tokens=np.array([7, 5]),
        output_tokens=np.array([6, 1]),
    )
    drafts = Drafts(
        columns={"logit_qmax": np.full((2, K), 3.0)},
        accepted=np.array([2, 1]),
        bonus=np.array([1, 1]),
        labelled=np.array([2, 2]),
    )
    found = rehearse(requests, drafts, make_admission("qmax", CHEAP, K), slots=1)
    assert found.request.tolist() == [0, 0]
    assert found.verified.tolist() == [2, 2]
    assert found.emitted.tolist() == [3, 2]
    tokens = [7, 1 + 2, 1 + 2, 5]
    np.testing.assert_allclose(found.step_ms, CHEAP.step_ms(1, tokens))


def test_a_request_that_trimming_slows_down_goes_on() -> None:
    dear = CostTable("dear", "model", verify=Curve((1, 2, 3), (1.0, 10.0, 30.0)))
    requests = Requests(np.array([0]), np.array([1]), np.array([3]), np.array([5]))
    drafts = Drafts(
        {"logit_qmax": np.full((1, K), -3.0)}, np.array([2]), np.array([1]), np.array([2])
    )
    found = rehearse(requests, drafts, make_admission("qmax", dear, K), slots=1)
    assert found.verified.sum() == 0
    assert found.emitted.tolist() == [1, 1, 1, 1]
