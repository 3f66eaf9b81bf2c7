"""The hook in the real vLLM: features, live columns, labels, churn, replay, and unchanged tokens.

Runs only in the environment that `run.py` prepares. Each scenario is one engine in a process of
its own; a spy below the hook keeps what vLLM held, and everything is computed again from that.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
import pytest

pytest.importorskip("vllm", reason="needs vLLM: make conformance")
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from draftlab.log.reader import DraftLog

if "PYTHONPATH" not in os.environ or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in the environment of run.py", allow_module_level=True)

from draftlab import open_log
from draftlab.log.checks import run_checks
from draftlab.schema import Excluded
from tests.conformance.vllm.scenario import REFIT_INTERVAL, SCENARIOS, K

FLOAT32 = 2e-6
"""Features are computed in float64 and stored in float32: half a unit in the last place."""
FROM_FLOAT32_LOGITS = 1e-5
"""p and q are softmaxes in float32 over 256 tokens."""
COEFFICIENTS = 1e-5
"""vLLM sums in float32, the replay in float64 (the issue asks for 1e-4)."""
F = TypeVar("F")
KEY = ["step", "slot", "position"]


@dataclass
class Result:
    """What a scenario left behind."""

    folder: Path
    record: dict[str, Any]

    @cached_property
    def log(self) -> DraftLog:
        return open_log(self.folder / "log")

    @cached_property
    def drafts(self) -> pl.DataFrame:
        return self.log.drafts.collect()

    @cached_property
    def requests(self) -> pl.DataFrame:
        return self.log.requests.collect()

    @cached_property
    def metadata(self) -> dict[str, Any]:
        [run] = self.log.runs
        return run.metadata

    def spied(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.record["events"] if event["kind"] == kind]


def run_scenario(name: str, folder: Path) -> Result:
    folder.mkdir()
    script = Path(__file__).with_name("scenario.py")
    done = subprocess.run(
        [sys.executable, str(script), name, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    return Result(folder, pickle.loads((folder / "record.pkl").read_bytes()))


@pytest.fixture(scope="session")
def results(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Result]]]:
    """Start the scenarios that the selected tests name, two at a time."""
    folder = tmp_path_factory.mktemp("vllm")
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    values = [value for call in calls if call is not None for value in call.params.values()]
    named = {value for value in values if isinstance(value, str)}
    wanted = [name for name in SCENARIOS if name in named]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {name: pool.submit(run_scenario, name, folder / name) for name in wanted}


@pytest.fixture
def result(results: dict[str, Future[Result]], request: pytest.FixtureRequest) -> Result:
    return results[request.param].result()


def scenarios(*names: str) -> Callable[[F], F]:
    """Run a test on the results of these scenarios."""
    return pytest.mark.parametrize("result", names, indirect=True)


def spied_rows(result: Result) -> pl.DataFrame:
    """Return a row per draft as the spy saw it, with labels joined by a plain loop."""
    rows: dict[tuple[int, int, int], dict[str, Any]] = {}
    pending: dict[int, tuple[str, int]] = {}
    step = -1
    for event in result.record["events"]:
        if event["kind"] == "verdict":
            step += 1
            judge(rows, pending, event, step)
        elif event["kind"] == "proposal":
            for i, slot in enumerate(event["slots"].tolist()):
                pending[slot] = (event["ids"][i], step)
                for k in range(K):
                    rows[step, slot, k] = draft_row(event, i, k, step, slot)
    return pl.DataFrame(list(rows.values()), infer_schema_length=None)


def judge(rows: Any, pending: Any, event: dict[str, Any], step: int) -> None:
    for slot, sampled, rejected in zip(
        event["slots"].tolist(), event["sampled"].tolist(), event["rejected"].tolist(), strict=True
    ):
        accepted = max(sampled - 1, 0)
        admitted = accepted + rejected
        if admitted == 0:
            continue
        _, proposed = pending[slot]
        for k in range(K):
            row = rows[proposed, slot, k]
            row |= {"verify_step": step, "admitted": k < admitted}
            if k <= accepted and k < admitted:
                row["accepted"] = k < accepted


def draft_row(event: dict[str, Any], i: int, k: int, step: int, slot: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": step,
        "slot": slot,
        "position": k,
        "verify_step": None,
        "admitted": False,
        "accepted": None,
        "token": int(event["tokens"][i, k]),
        "id": event["ids"][i],
    }
    if event["logits"] is not None:
        tau = float(event["temperature"][i]) or 1.0
        row |= exact_features(event["logits"][i, k].astype(np.float64) / tau, row["token"])
    if "features" in event:
        row["live_feature"] = float(event["features"][i, k])
        row["live_prediction"] = float(event["predictions"][i, k])
    return row


def exact_features(z: np.ndarray, token: int) -> dict[str, float]:
    order = np.argsort(z)[::-1]
    logq = z - z[order[0]] - np.log(np.exp(z - z[order[0]]).sum())

    def log_odds(index: int) -> float:
        others = np.delete(z, index)
        return float(z[index] - others.max() - np.log(np.exp(others - others.max()).sum()))

    return {
        "logit_qmax": log_odds(int(order[0])),
        "top2_margin": float(z[order[0]] - z[order[1]]),
        "entropy": float(-(np.exp(logq) * logq).sum()),
        "logit_q_sampled": log_odds(token),
    }


def joined(result: Result) -> pl.DataFrame:
    """Return logged and spied rows side by side; both must hold the same keys."""
    spied, logged = spied_rows(result), result.drafts
    assert logged.height == spied.height
    both = logged.join(spied, on=KEY, how="inner", suffix="_spied")
    assert both.height == spied.height
    return both


@scenarios("plain", "churn", "async")
def test_features_equal_a_float64_recomputation(result: Result) -> None:
    both = joined(result)
    for name in ("logit_qmax", "top2_margin", "entropy", "logit_q_sampled"):
        np.testing.assert_allclose(
            both[name], both[f"{name}_spied"], rtol=FLOAT32, atol=FLOAT32, err_msg=name
        )


@scenarios("plain", "churn", "async", "greedy")
def test_live_columns_are_the_buffers_of_vllm(result: Result) -> None:
    both = joined(result)
    for name in ("live_feature", "live_prediction"):
        np.testing.assert_array_equal(both[name], both[f"{name}_spied"].cast(pl.Float32))
    assert both["live_prediction"].n_unique() > 20


@scenarios("plain", "churn", "async", "greedy")
def test_labels_equal_the_verdicts(result: Result) -> None:
    both = joined(result)
    for name in ("verify_step", "admitted", "accepted"):
        assert both[name].to_list() == both[f"{name}_spied"].to_list(), name
    assert both["accepted"].sum() > 10
    assert (~both["accepted"]).sum() > 10


@scenarios("plain", "churn", "async", "greedy", "plugin")
def test_emitted_tokens_are_accepted_drafts_and_one_a_step(result: Result) -> None:
    """Against vLLM's outputs: what each request emitted, and that it ended where it did."""
    rows = result.requests.filter(pl.col("dataset") != "warmup")
    outputs = {name: len(tokens) for name, tokens in result.record["outputs"].items()}
    assert sorted(rows["output_tokens"].to_list()) == sorted(outputs.values())
    for row in rows.iter_rows(named=True):
        total = row["output_tokens"]
        assert total == outputs.get(row["external_id"], total)
        proposed = emissions(result.drafts.filter(pl.col("request") == row["request"]))
        for now, after in pairwise(proposed.iter_rows(named=True)):
            if now["graded"]:
                end = now["output_index"] + now["accepted"] + 1
                assert after["output_index"] == min(end, total)
        last = proposed.filter("graded").row(-1, named=True)
        assert last["output_index"] + last["accepted"] + 1 >= total  # the engine cuts at the end
    real = result.drafts.filter((pl.col("excluded") & int(Excluded.PLACEHOLDER)) == 0)
    assert set(real.group_by("request").agg(pl.col("output_index").min())["output_index"]) == {1}


def emissions(drafts: pl.DataFrame) -> pl.DataFrame:
    """Return a row per proposal of a request, in order."""
    return (
        drafts.group_by("step")
        .agg(
            pl.col("output_index").first(),
            pl.col("accepted").sum().cast(pl.Int64),
            graded=pl.col("verify_step").is_not_null().any(),
        )
        .sort("step")
    )


@scenarios("plain", "churn", "async", "greedy")
def test_the_counters_of_vllm_agree(result: Result) -> None:
    counters = result.record["counters"]
    graded = result.drafts.filter(
        pl.col("verify_step").is_not_null() & ((pl.col("excluded") & int(Excluded.WARMUP)) == 0)
    )
    logged = {
        "vllm:spec_decode_num_drafts": graded.select("step", "slot").unique().height,
        "vllm:spec_decode_num_draft_tokens": graded["admitted"].sum(),
        "vllm:spec_decode_num_accepted_tokens": graded["accepted"].sum(),
    }
    assert {name: counters[name] for name in logged} == logged
    by_position = graded.group_by("position").agg(pl.col("accepted").sum()).sort("position")
    counted = counters["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert by_position["accepted"].to_list() == list(counted)


@scenarios("churn")
def test_accepted_drafts_stand_in_the_output_where_the_log_says(result: Result) -> None:
    ids = dict(zip(result.requests["request"], result.requests["external_id"], strict=True))
    rows = result.drafts.filter(
        pl.col("accepted").fill_null(value=False)
        & ((pl.col("excluded") & int(Excluded.AFTER_STOP)) == 0)
    )
    for row in rows.iter_rows(named=True):
        output = result.record["outputs"][ids[row["request"]]]
        assert output[row["output_index"] + row["position"]] == row["token"]
    assert rows.height > 20


@scenarios("churn", "async")
def test_the_scenario_reuses_slots_and_reorders_batches(result: Result) -> None:
    """Slots are reused, batches reordered, prompts chunked, requests preempted, kinds mixed."""
    events = result.spied("proposal")
    owners: dict[int, set[str]] = {}
    for event in events:
        for slot, name in zip(event["slots"].tolist(), event["ids"], strict=True):
            owners.setdefault(slot, set()).add(name)
    assert max(len(names) for names in owners.values()) > 2
    assert any(np.any(np.diff(e["slots"]) < 0) for e in events)
    assert any(np.any(np.diff(e["slots"]) > 0) for e in events)
    assert any((e["sampled"] == 0).any() for e in result.spied("verdict"))
    slots = [{slot for slot, names in owners.items() if name in names} for name in all_ids(events)]
    assert any(len(places) > 1 for places in slots), "nobody was preempted"
    requests = result.requests
    assert requests["temperature"].n_unique() > 3
    assert requests.filter(pl.col("finish_reason") == "stop").height == 1
    assert requests.filter(pl.col("finish_reason") == "length").height == requests.height - 1


def all_ids(events: list[dict[str, Any]]) -> set[str]:
    return {name for event in events for name in event["ids"]}


@scenarios("churn", "async", "plugin")
def test_requests_are_described_and_marked(result: Result) -> None:
    rows = {row["external_id"]: row for row in result.requests.iter_rows(named=True)}
    assert set(rows) == set(result.record["outputs"])
    assert {row["dataset"] for row in rows.values()} == {"even", "odd"}
    assert rows["even/1/0"]["top_p"] == pytest.approx(0.9)
    assert rows["odd/1/0"]["top_k"] == 40
    assert rows["even/0/0"]["seed"] == 100
    assert rows["even/2/0"]["transforms"] == "presence_penalty"
    assert rows["even/2/0"]["group"] == "even/2"
    penalised = rows["even/2/0"]["request"]
    bit = int(Excluded.TARGET_ONLY_TRANSFORM)
    marked = result.drafts.filter((pl.col("excluded") & bit) != 0)["request"].unique().to_list()
    assert penalised in marked
    assert set(marked) <= {penalised, rows["even/3/0"]["request"]}


@scenarios("plain")
def test_warm_up_is_logged_and_marked(result: Result) -> None:
    warm = result.requests.filter(pl.col("dataset") == "warmup")["request"].to_list()
    assert len(warm) == 4
    rows = result.drafts.filter(pl.col("request").is_in(warm))
    assert ((rows["excluded"] & int(Excluded.WARMUP)) != 0).all()
    assert rows["accepted"].count() > 0


@scenarios("plain", "churn", "async", "greedy")
def test_a_replay_from_the_snapshot_gives_the_coefficients_of_vllm(result: Result) -> None:
    start, state = result.metadata["estimator_start"], result.record["state"]
    assert start["refit_interval"] == REFIT_INTERVAL
    steps = result.log.steps.collect().height
    assert steps // REFIT_INTERVAL >= 2
    slope, intercepts = replay(start, result.drafts, steps)
    assert slope == pytest.approx(float(state["slope"][0]), abs=COEFFICIENTS)
    np.testing.assert_allclose(intercepts, state["intercepts"], rtol=0, atol=COEFFICIENTS)
    assert abs(slope - 0.5) > 1e-3, "the fit has not moved"


def replay(start: dict[str, Any], drafts: pl.DataFrame, steps: int) -> tuple[float, np.ndarray]:
    """Return slope and intercepts after all steps: the rule in float64, from logged rows alone."""
    slope, intercepts = start["slope"], np.array(start["intercepts"])
    info, grad, counts = (np.array(start[name]) for name in ("info", "grad", "counts"))
    observed = drafts.filter(pl.col("accepted").is_not_null())
    since = start["steps_since_refit"]
    for step in range(steps):
        for row in observed.filter(pl.col("verify_step") == step).iter_rows(named=True):
            k, f, p = row["position"], row["live_feature"], row["live_prediction"]
            weight, residual = p * (1 - p), float(row["accepted"]) - p
            info[k] += weight * np.array([f * f, f, 1.0])
            grad[k] += residual * np.array([f, 1.0])
            counts[k] += 1
        since += 1
        if since == start["refit_interval"]:
            slope, intercepts = newton(start, slope, intercepts, info, grad, counts)
            since = 0
            info[:], grad[:], counts[:] = 0, 0, 0
    return slope, intercepts


def newton(
    start: dict[str, Any], slope: float, intercepts: Any, info: Any, grad: Any, counts: Any
) -> tuple[float, Any]:
    a, b, c = info[:, 0].sum() + start["ridge"], info[:, 1], info[:, 2] + start["ridge"]
    u, v = grad[:, 0].sum(), grad[:, 1]
    step = (u - (b * v / c).sum()) / (a - (b * b / c).sum())
    step *= counts.sum() / (counts.sum() + start["damping"])
    if np.isnan(step) or slope + step < 0:
        step = 0.0
    return slope + step, intercepts + (v - b * step) / c * counts / (counts + start["damping"])


@scenarios("plain")
def test_overlap_and_accept_prob_equal_p_and_q(result: Result) -> None:
    both = joined(result)
    exact = exact_target(result)
    rows = both.filter(pl.col("verify_step").is_not_null())
    assert rows["overlap"].null_count() == 0
    for row in rows.iter_rows(named=True):
        overlap, accept = exact[row["verify_step"], row["slot"], row["position"]]
        assert row["overlap"] == pytest.approx(overlap, abs=FROM_FLOAT32_LOGITS)
        assert row["accept_prob"] == pytest.approx(accept, abs=FROM_FLOAT32_LOGITS)
    assert both.filter(pl.col("verify_step").is_null())["overlap"].count() == 0


def exact_target(result: Result) -> dict[tuple[int, int, int], tuple[float, float]]:
    """Return overlap and acceptance probability in float64 by (verify step, slot, position)."""
    found: dict[tuple[int, int, int], tuple[float, float]] = {}
    q: dict[tuple[int, int], np.ndarray] = {}
    step = -1
    for event in result.record["events"]:
        if event["kind"] == "proposal":
            for i, slot in enumerate(event["slots"].tolist()):
                for k in range(K):
                    tau = float(event["temperature"][i]) or 1.0
                    q[slot, k] = softmax(event["logits"][i, k] / tau)
        elif event["kind"] == "target":  # comes ahead of the verdict of its step
            for r in range(len(event["tokens"]) - 1):
                slot, k = int(event["slots"][r]), int(event["positions"][r])
                if event["positions"][r + 1] == k + 1:
                    p, token = softmax(event["logits"][r]), int(event["tokens"][r + 1])
                    both = q[slot, k]
                    found[step + 1, slot, k] = (
                        float(np.minimum(p, both).sum()),
                        min(1.0, float(p[token] / both[token])),
                    )
        else:
            step += 1
    return found


def softmax(logits: np.ndarray) -> np.ndarray:
    z: np.ndarray = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(z / z.sum())


@scenarios("greedy")
def test_greedy_drafting_falls_back_on_the_stored_feature(result: Result) -> None:
    drafts, columns = result.drafts, result.metadata["columns"]
    assert result.metadata["drafting"] == "greedy"
    assert result.metadata["feature_source"] == "estimator"
    for name in ("logit_qmax", "logit_q_sampled"):
        assert drafts[name].equals(drafts["live_feature"].alias(name))
    assert drafts["entropy"].count() == 0
    assert "greedy" in columns["entropy"]
    assert columns["logit_qmax"].startswith("recorded")


@pytest.mark.parametrize(
    ("with_hook", "without"),
    [("plain", "plain_off"), ("raising", "plain_off"), ("greedy", "greedy_off")],
)
def test_the_tokens_are_those_without_a_hook(
    results: dict[str, Future[Result]], with_hook: str, without: str
) -> None:
    outputs = results[with_hook].result().record["outputs"]
    assert outputs == results[without].result().record["outputs"]
    assert sum(map(len, outputs.values())) == 96


@scenarios("raising")
def test_the_raising_hook_raised_at_every_site(result: Result) -> None:
    sites = {
        "on_add",
        "on_finish",
        "on_verdict",
        "on_propose",
        "on_shutdown",
        "start_timer",
        "start",
    }
    assert set(result.record["raised"]) == sites


@scenarios("plain_off", "greedy_off", "raising")
def test_without_a_hook_nothing_is_written(result: Result) -> None:
    assert not (result.folder / "log").exists()


@scenarios("plain", "churn", "async", "greedy", "plugin")
def test_the_log_is_closed_and_passes_its_checks(result: Result) -> None:
    assert result.metadata["closed"]
    assert result.metadata["dropped_proposals"] == 0
    assert [f for f in run_checks(result.log) if f.severity != "note"] == []


@scenarios("collect")
def test_an_offline_engine_collects_over_prompts(result: Result) -> None:
    [run] = result.log.runs
    assert run.name == result.record["run"]
    assert run.metadata["closed"]
    requests = result.requests
    assert sorted(requests["external_id"]) == ["chat/0/0", "chat/0/1", "code/1/0"]
    assert sorted(requests["group"]) == ["chat/0", "chat/0", "code/1"]
    assert requests["prompt_tokens"].to_list()[:2] == [5, 5]
    assert result.drafts["accepted"].count() > 10
    assert result.drafts["entropy"].null_count() == 0
    assert [f for f in run_checks(result.log) if f.severity != "note"] == []


@scenarios("churn", "plugin")
def test_nothing_of_the_prompts_is_on_the_disk(result: Result) -> None:
    assert result.drafts["token"].count() == (0 if "plugin" in result.folder.name else 200)


@scenarios("plain")
def test_ids_are_hashed_unless_asked(result: Result) -> None:
    for name in result.requests["external_id"]:
        assert len(name) == 16
        assert int(name, 16) >= 0
