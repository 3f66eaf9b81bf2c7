"""The recorder: events of a small history by hand, and what becomes of them on the disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.hooks.join import Arrival
from draftlab.hooks.recorder import EndEvent, Recorder, RequestEvent, StepEvent
from draftlab.hooks.settings import HookSettings
from draftlab.log.reader import DraftLog, open_log
from draftlab.schema import Excluded
from tests.logs import METADATA

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

K = 2
NAMES = ("logit_qmax", "entropy")


class Taken:
    """A copy that has arrived."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def take(self) -> np.ndarray[Any, Any]:
        return self.values


def recorder(folder: Path, **settings: Any) -> Recorder:
    return Recorder(HookSettings(log=folder, **settings), METADATA, num_slots=2, num_positions=K)


def enter(request: int, slot: int, prompt: list[int] | None = None) -> RequestEvent:
    row = {"dataset": "d", "group": f"d/{request}", "temperature": 1.0}
    arrival = Arrival(request, slot, prompt_tokens=3, max_output=4)
    return RequestEvent(arrival, row, prompt, new=True)


def step(
    number: int,
    rows: list[list[int]],
    floats: list[list[list[float]]] | None,
    *,
    slots: list[int] | None = None,
    integers: bool = True,
) -> StepEvent:
    """Return an engine step; a row is slot, sampled, rejected, last token and K draft tokens."""
    return StepEvent(
        step=number,
        row={"step": number, "num_requests": len(rows), "num_non_draft_tokens": len(rows)},
        slots=np.array([row[0] for row in rows] if slots is None else slots),
        num_scheduled=None,
        offered=K,
        integers=Taken(rows) if integers else None,  # type: ignore[arg-type]
        floats=None if floats is None else Taken(np.float32(floats)),  # type: ignore[arg-type]
        float_names=NAMES,
    )


FIRST = [[[1.0, 0.1], [2.0, 0.2]], [[3.0, 0.3], [4.0, 0.4]]]
SECOND = [[[5.0, 0.5], [6.0, 0.6]], [[7.0, 0.7], [8.0, 0.8]]]


def serve(folder: Path, *events: Any, **settings: Any) -> tuple[Recorder, DraftLog]:
    """Record the events of one run and open its log."""
    made = recorder(folder, **settings)
    for event in events:
        made.put(event)
    made.close()
    return made, open_log(folder)


def history() -> list[Any]:
    """Two requests propose; one has both drafts accepted and so its four tokens, the other none."""
    return [
        enter(10, 0),
        enter(11, 1),
        step(0, [[0, 1, 0, 7, 1, 2], [1, 1, 0, 7, 3, 4]], FIRST),
        step(1, [[0, 3, 0, 9, 5, 6], [1, 1, 2, 9, 7, 8]], SECOND),
    ]


def test_drafts_of_a_step_get_the_verdict_of_the_next(tmp_path: Path) -> None:
    made, log = serve(tmp_path, *history())
    assert (made.counts.dropped, made.counts.unmatched, made.counts.reordered) == (0, 0, 0)
    drafts = log.drafts.collect().sort("step", "request", "position")
    graded = drafts.filter(drafts["verify_step"].is_not_null())
    assert graded["request"].to_list() == [10, 10, 11, 11]
    assert graded["accepted"].to_list() == [True, True, False, None]
    assert graded["verify_step"].to_list() == [1] * 4
    assert graded["logit_qmax"].to_list() == [1.0, 2.0, 3.0, 4.0]
    np.testing.assert_allclose(graded["entropy"], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    waiting = drafts.filter(drafts["verify_step"].is_null())
    assert waiting["logit_qmax"].to_list() == [5.0, 6.0, 7.0, 8.0]
    assert drafts["token"].null_count() == len(drafts)  # private unless asked for


def test_steps_add_up_what_their_verdicts_brought(tmp_path: Path) -> None:
    _, log = serve(tmp_path, *history())
    steps = log.steps.collect()
    assert steps["num_sampling_requests"].to_list() == [2, 2]
    assert steps["num_admitted"].to_list() == [0, 4]
    assert steps["num_accepted"].to_list() == [0, 2]
    assert steps["num_emitted"].to_list() == [2, 4]  # 3 + 1
    assert steps["num_proposed"].to_list() == [4, 4]
    assert steps["mean_context_tokens"].to_list() == [4.0, (7 + 5) / 2]
    requests = log.requests.collect().sort("request")
    assert requests["output_tokens"].to_list() == [4, None]  # at its limit; the other still runs
    assert requests["finish_reason"].to_list() == ["length", None]


def test_the_end_of_a_request_is_told_by_the_scheduler(tmp_path: Path) -> None:
    end = EndEvent(finished=((0, 10, False), (1, 11, True)), preempted=())
    _, log = serve(tmp_path, *history(), end)
    requests = log.requests.collect().sort("request")
    assert requests["output_tokens"].to_list() == [4, 2]
    assert requests["finish_reason"].to_list() == ["length", "stop"]  # by a stop string


def test_tokens_are_written_on_request_and_prompts_as_salted_groups(tmp_path: Path) -> None:
    events = history()
    events[0], events[1] = enter(10, 0, [4, 5]), enter(11, 1, [4, 5])
    _, log = serve(tmp_path / "on", *events, tokens=True, salt="s")
    drafts = log.drafts.collect().sort("step", "request", "position")
    assert drafts["token"].to_list() == [1, 2, 3, 4, 5, 6, 7, 8]
    [group] = log.requests.collect()["group"].unique().to_list()
    _, other = serve(tmp_path / "off", *events, salt="t")
    assert group.startswith("d/")
    assert other.requests.collect()["group"].unique().to_list() != [group]


def test_a_step_whose_copy_found_no_place_is_counted_and_grades_nothing(tmp_path: Path) -> None:
    events = history()
    lost = step(1, [[0, 3, 0, 9, 5, 6], [1, 1, 2, 9, 7, 8]], SECOND, integers=False)
    made, log = serve(tmp_path, *events[:3], lost)
    assert made.counts.dropped == 4  # two that waited for this verdict, two of the step itself
    assert log.drafts.collect().is_empty()
    assert log.steps.collect()["num_dropped"].to_list() == [0, 4]


def test_features_that_found_no_place_cost_their_proposals_only(tmp_path: Path) -> None:
    events = history()
    events[3] = step(1, [[0, 3, 0, 9, 5, 6], [1, 1, 2, 9, 7, 8]], None)
    made, log = serve(tmp_path, *events)
    assert made.counts.dropped == 2
    steps = log.steps.collect()
    assert steps["num_dropped"].to_list() == [0, 2]
    assert steps["num_accepted"].to_list() == [0, 2]  # the verdict is there all the same
    assert len(log.drafts.collect()) == 4


def test_another_order_on_the_device_is_counted_and_the_devices_own_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = history()
    events[3] = step(1, [[1, 3, 0, 9, 5, 6], [0, 1, 2, 9, 7, 8]], SECOND, slots=[0, 1])
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        made, log = serve(tmp_path, *events)
    assert made.counts.reordered == 1
    assert "could not be joined" in caplog.text
    drafts = log.drafts.collect().drop_nulls("verify_step").sort("request", "position")
    assert drafts["accepted"].to_list() == [False, None, True, True]


def test_features_that_are_not_finite_are_marked(tmp_path: Path) -> None:
    events = history()
    nan = [[[float("nan"), 0.1], [2.0, 0.2]], FIRST[1]]
    events[2] = step(0, [[0, 1, 0, 7, 1, 2], [1, 1, 0, 7, 3, 4]], nan)
    _, log = serve(tmp_path, *events)
    drafts = log.drafts.collect().drop_nulls("verify_step").sort("request", "position")
    assert drafts["excluded"].to_list() == [int(Excluded.NONFINITE), 0, 0, 0]
    assert drafts["logit_qmax"].to_list() == [None, 2.0, 3.0, 4.0]


def test_the_first_error_ends_the_run_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = step(1, [[0, 3, 0, 9, 5, 6]], SECOND)  # features of more rows than there are
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        made, log = serve(tmp_path, *history()[:3], broken, *history()[3:])
        made.put(broken)
        made.close()
    assert not made.alive
    assert len([r for r in caplog.records if "stops logging" in r.getMessage()]) == 1
    assert log.runs[0].metadata["closed"]
    assert len(log.steps.collect()) == 1
