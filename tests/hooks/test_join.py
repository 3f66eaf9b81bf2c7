"""Joining verdicts to proposals: small histories, written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftlab.hooks.join import Arrival, Joiner, Outcome, Proposal, Verdict
from draftlab.schema import Excluded

K = 3


def verdict(
    step: int,
    slots: list[int],
    sampled: list[int],
    rejected: list[int],
    last: list[int] | None = None,
    **given: Any,
) -> Verdict:
    tokens = last or [99] * len(slots)
    return Verdict(
        step, np.array(slots), np.array(sampled), np.array(rejected), np.array(tokens), **given
    )


def proposal(
    step: int, slots: list[int], tokens: list[list[int]] | None = None, offered: int = K
) -> Proposal:
    n = len(slots)
    ids = np.array(tokens or [[10 * s + k for k in range(K)] for s in slots])
    feature = 100.0 * step + np.array(slots)[:, None] + np.arange(K) / 10
    return Proposal(step, np.array(slots), ids.reshape(n, K), offered, {"logit_qmax": feature})


def joiner(*arrivals: Arrival, slots: int = 4) -> Joiner:
    join = Joiner(slots, K)
    for arrival in arrivals:
        join.arrive(arrival)
    return join


def labels(outcome: Outcome) -> list[bool | None]:
    assert outcome.drafts is not None
    return list(np.ma.asarray(outcome.drafts["accepted"]).tolist())


def prefilled(*arrivals: Arrival) -> Joiner:
    """Return a joiner whose requests have read their prompt and proposed at step 0."""
    join = joiner(*arrivals)
    slots = [a.slot for a in arrivals]
    n = len(slots)
    assert join.judge(verdict(0, slots, [1] * n, [0] * n)).drafts is None
    join.propose(proposal(0, slots))
    return join


def test_the_first_rejection_ends_the_labels() -> None:
    outcome = prefilled(Arrival(7, slot=2)).judge(verdict(1, [2], [2], [2]))
    assert labels(outcome) == [True, False, None]
    drafts = outcome.drafts
    assert drafts is not None
    assert drafts["request"].tolist() == [7] * 3
    assert drafts["step"].tolist() == [0] * 3
    assert drafts["verify_step"].tolist() == [1] * 3
    assert drafts["admitted"].all()
    assert drafts["output_index"].tolist() == [1] * 3
    np.testing.assert_allclose(drafts["logit_qmax"], [2.0, 2.1, 2.2])
    assert (outcome.num_admitted, outcome.num_accepted, outcome.num_emitted) == (3, 1, 2)


def test_what_was_trimmed_is_unobserved() -> None:
    """With two verified and both accepted, the third has no label."""
    outcome = prefilled(Arrival(0, slot=0)).judge(verdict(1, [0], [3], [0]))
    assert labels(outcome) == [True, True, None]
    assert outcome.drafts is not None
    assert outcome.drafts["admitted"].tolist() == [True, True, False]
    outcome = prefilled(Arrival(0, slot=0)).judge(verdict(1, [0], [2], [1]))
    assert labels(outcome) == [True, False, None]


def test_a_proposal_trimmed_to_nothing_is_covered_but_not_admitted() -> None:
    scheduled = np.array([3])
    outcome = prefilled(Arrival(0, slot=0)).judge(
        verdict(1, [0], [1], [0], num_scheduled=scheduled)
    )
    assert outcome.drafts is not None
    assert outcome.drafts["verify_step"].tolist() == [1] * 3
    assert not outcome.drafts["admitted"].any()
    plain = prefilled(Arrival(0, slot=0)).judge(
        verdict(1, [0], [1], [0], num_scheduled=0 * scheduled)
    )
    assert plain.drafts is not None
    assert plain.drafts["verify_step"].mask.all()


def test_the_batch_may_be_in_any_order_and_rows_are_sorted() -> None:
    join = prefilled(Arrival(5, slot=0), Arrival(6, slot=3), Arrival(7, slot=1))
    outcome = join.judge(verdict(1, [3, 1, 0], [1, 2, 4], [3, 2, 0]))
    assert outcome.drafts is not None
    assert outcome.drafts["slot"].tolist() == [0] * 3 + [1] * 3 + [3] * 3
    assert outcome.drafts["request"].tolist() == [5] * 3 + [7] * 3 + [6] * 3
    assert labels(outcome) == [True, True, True, True, False, None, False, None, None]


def test_a_request_that_is_not_scheduled_keeps_its_proposal() -> None:
    join = prefilled(Arrival(0, slot=0), Arrival(1, slot=1))
    join.judge(verdict(1, [0], [1], [3]))
    join.propose(proposal(1, [0]))
    outcome = join.judge(verdict(2, [0, 1], [1, 1], [3, 3]))
    assert outcome.drafts is not None
    assert outcome.drafts["step"].tolist() == [0] * 3 + [1] * 3
    assert outcome.drafts["slot"].tolist() == [1] * 3 + [0] * 3


def test_chunked_prefill_has_no_rows_and_its_drafts_are_placeholders() -> None:
    """Sampled 0, rejected 0."""
    join = joiner(Arrival(0, slot=0))
    assert join.judge(verdict(0, [0], [0], [0])).drafts is None
    join.propose(proposal(0, [0]))
    outcome = join.judge(verdict(1, [0], [1], [0]))
    assert outcome.drafts is not None
    assert labels(outcome) == [None] * 3
    assert outcome.drafts["verify_step"].mask.all()
    assert set(outcome.drafts["excluded"].tolist()) == {int(Excluded.PLACEHOLDER)}
    assert outcome.num_emitted == 1
    join.propose(proposal(1, [0]))
    graded = join.judge(verdict(2, [0], [1], [3])).drafts
    assert graded is not None
    assert graded["excluded"].tolist() == [0] * 3


def test_a_reused_slot_never_grades_its_former_owner() -> None:
    join = prefilled(Arrival(0, slot=0))
    left = join.arrive(Arrival(1, slot=0))
    assert left is not None
    assert left["request"].tolist() == [0] * 3
    assert left["verify_step"].mask.all()
    assert join.judge(verdict(1, [0], [1], [0])).drafts is None


def test_a_preempted_request_comes_back_elsewhere_with_its_count() -> None:
    join = prefilled(Arrival(0, slot=0))
    assert join.leave(0) is not None
    join.arrive(Arrival(0, slot=2, emitted=4))
    join.judge(verdict(1, [2], [1], [0]))
    join.propose(proposal(1, [2]))
    drafts = join.judge(verdict(2, [2], [1], [3])).drafts
    assert drafts is not None
    assert drafts["output_index"].tolist() == [5] * 3


def test_behind_a_stop_token_nothing_is_emitted() -> None:
    """Drafts [a, STOP, c], all accepted."""
    join = prefilled(Arrival(0, slot=0, stop_tokens=(1, 50)))
    join.judge(verdict(1, [0], [1], [3]))
    join.propose(proposal(1, [0], [[4, 50, 6]]))
    outcome = join.judge(verdict(2, [0], [4], [0]))
    assert outcome.drafts is not None
    assert outcome.drafts["excluded"].tolist() == [0, 0, int(Excluded.AFTER_STOP)]
    assert (outcome.num_accepted, outcome.num_emitted) == (2, 2)
    assert join.output(0) == (4, "stop")


def test_a_stop_token_among_the_unaccepted_is_none() -> None:
    join = prefilled(Arrival(0, slot=0, stop_tokens=(50,)))
    join.judge(verdict(1, [0], [1], [3]))
    join.propose(proposal(1, [0], [[4, 50, 6]]))
    assert join.judge(verdict(2, [0], [2], [2], last=[7])).num_emitted == 2
    assert join.output(0) == (4, None)
    join.judge(verdict(3, [0], [1], [0], last=[50]))  # recovered, not drafted
    assert join.output(0) == (5, "stop")


def test_min_tokens_keeps_a_stop_token_from_ending() -> None:
    join = prefilled(Arrival(0, slot=0, stop_tokens=(99,), min_output=3))
    assert join.output(0) == (1, None)
    join.judge(verdict(1, [0], [1], [3]))
    assert join.output(0) == (2, None)
    join.judge(verdict(2, [0], [1], [0]))
    assert join.output(0) == (3, "stop")


def test_verdicts_are_cut_at_max_tokens() -> None:
    join = prefilled(Arrival(0, slot=0, max_output=3))
    outcome = join.judge(verdict(1, [0], [4], [0]))
    assert outcome.drafts is not None
    assert outcome.drafts["excluded"].tolist() == [0, 0, int(Excluded.AFTER_STOP)]
    assert outcome.num_emitted == 2
    assert join.output(0) == (3, "length")


def test_a_request_that_has_ended_goes_on_unnoticed() -> None:
    """With asynchronous scheduling the engine runs a step more and throws it away."""
    join = prefilled(Arrival(0, slot=0, max_output=2))
    join.judge(verdict(1, [0], [1], [3]))
    join.propose(proposal(1, [0]))
    outcome = join.judge(verdict(2, [0], [3], [1]))
    assert outcome.drafts is not None
    assert set(outcome.drafts["excluded"].tolist()) == {int(Excluded.AFTER_STOP)}
    assert outcome.num_emitted == 0
    assert join.output(0) == (2, "length")


def test_fewer_drafts_offered_are_fewer_rows() -> None:
    """What was not proposed is not a row."""
    join = joiner(Arrival(0, slot=0))
    join.judge(verdict(0, [0], [1], [0]))
    join.propose(proposal(0, [0], offered=1))
    assert labels(join.judge(verdict(1, [0], [2], [0]))) == [True]


def test_dropped_proposals_leave_no_rows_but_their_tokens_count() -> None:
    join = joiner(Arrival(0, slot=0, stop_tokens=(50,)))
    join.judge(verdict(0, [0], [1], [0]))
    dropped = proposal(0, [0], [[50, 1, 2]])
    join.propose(Proposal(0, dropped.slots, dropped.tokens, K, None))
    outcome = join.judge(verdict(1, [0], [3], [1]))
    assert outcome.drafts is None
    assert outcome.num_emitted == 1
    assert join.output(0) == (2, "stop")


def test_a_lost_verdict_forgets_what_it_would_have_graded() -> None:
    join = prefilled(Arrival(0, slot=0), Arrival(1, slot=1))
    assert join.lose() == 2
    join.propose(proposal(1, [0, 1]))
    drafts = join.judge(verdict(2, [0, 1], [2, 1], [2, 3])).drafts
    assert drafts is not None
    assert drafts["output_index"].mask.all(), "nobody knows how many tokens came before"
    assert join.output(0) == (None, None)


def test_requests_that_nobody_announced_are_counted_not_guessed() -> None:
    join = joiner(Arrival(0, slot=0))
    assert join.propose(proposal(0, [0, 1])) == 1
    outcome = join.judge(verdict(1, [0, 1], [2, 2], [2, 2]))
    assert outcome.unmatched == 1
    assert outcome.drafts is not None
    assert outcome.drafts["slot"].tolist() == [0] * 3


def test_what_waits_at_the_end_is_never_graded() -> None:
    join = prefilled(Arrival(0, slot=0, excluded=int(Excluded.WARMUP)))
    rows = join.pending()
    assert rows is not None
    assert rows["excluded"].tolist() == [int(Excluded.WARMUP)] * 3
    assert join.pending() is None


def test_target_columns_follow_their_rows() -> None:
    join = prefilled(Arrival(0, slot=0), Arrival(1, slot=1))
    overlap = np.arange(6.0).reshape(2, 3)
    outcome = join.judge(verdict(1, [1, 0], [1, 1], [3, 3], target={"overlap": overlap}))
    assert outcome.drafts is not None
    assert outcome.drafts["overlap"].tolist() == [3.0, 4.0, 5.0, 0.0, 1.0, 2.0]
