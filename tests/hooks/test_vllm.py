"""The hook on a stand-in for vLLM: when it acts, what it marks, and that nothing escapes it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from draftlab import open_log
from draftlab.hooks import vllm as hook_module
from draftlab.hooks.vllm import VllmHook, register
from draftlab.log.checks import run_checks
from draftlab.schema import Excluded
from tests.hooks import fake_vllm
from tests.hooks.fake_vllm import (
    NgramGPUSpeculator,
    StandaloneARSpeculator,
    config,
    new_request,
    scheduled,
)

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.log.reader import DraftLog

SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"


class Engine:
    """A runner with the hook on, and the folder it logs to."""

    def __init__(self, runner_class: Any, speculator: Any, log: Path, **speculative: Any) -> None:
        self.runner = runner_class(speculator, config(**speculative))
        self.speculator = speculator
        self.log = log
        speculator.load_model(None)

    def serve(self) -> None:
        """Serve two requests for two steps, then finish one."""
        self.runner.add_requests(scheduled(new_request("a-01234567"), new_request("b-01234567")))
        self.runner.step([0, 1], [1, 1], [0, 0])
        self.runner.step([1, 0], [2, 3], [1, 0])
        self.runner.finish_requests(scheduled(finished=("a-01234567",)))

    def read(self) -> DraftLog:
        """Shut down and open the log."""
        self.runner.shutdown()
        return open_log(self.log)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a maker of engines."""

    def make(speculator: Any = None, *, rank: int = 0, environment: Any = None, **spec: Any) -> Any:
        monkeypatch.setenv("DRAFTLAB_LOG", str(tmp_path / "log"))
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        runner_class = fake_vllm.install(monkeypatch, rank=rank)
        register()
        made = Engine(
            runner_class, speculator or StandaloneARSpeculator(), tmp_path / "log", **spec
        )
        engines.append(made)
        return made

    engines: list[Engine] = []
    yield make
    for made in engines:
        made.runner.shutdown()


def test_inert_without_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTLAB_LOG", raising=False)
    fake_vllm.install(monkeypatch)
    before = sys.modules[SPEC_DECODE].init_speculator
    register()
    assert sys.modules[SPEC_DECODE].init_speculator is before


def test_registering_twice_wraps_once_and_also_an_early_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTLAB_LOG", str(tmp_path))
    fake_vllm.install(monkeypatch)
    register()
    once = sys.modules[SPEC_DECODE].init_speculator
    register()
    assert sys.modules[SPEC_DECODE].init_speculator is once
    assert sys.modules["vllm.v1.worker.gpu.model_runner"].init_speculator is once


def test_a_run_in_full(engine: Any) -> None:
    made = engine()
    made.serve()
    log = made.read()
    [run] = log.runs
    assert run.metadata["closed"]
    assert run.metadata["engine"] == "vllm 0.99"
    assert run.metadata["estimator_start"]["intercepts"] == pytest.approx([-0.2, -0.2])
    drafts = log.drafts.collect()
    graded = drafts.filter(drafts["verify_step"].is_not_null())
    assert graded["slot"].to_list() == [0, 0, 1, 1]
    assert graded["accepted"].to_list() == [True, True, True, False]
    assert graded["live_feature"].to_list() == [0.0, 1.0, 2.0, 3.0]
    assert graded["token"].null_count() == 4
    steps = log.steps.collect()
    assert steps["num_accepted"].to_list() == [0, 3]
    assert steps["num_emitted"].to_list() == [2, 5]
    assert steps["num_non_draft_tokens"].to_list() == [2, 2]
    assert steps["padded_tokens"].to_list() == [8, 8]
    assert steps["mean_context_tokens"].to_list() == [4.0, 6.5]
    requests = log.requests.collect()
    assert requests["output_tokens"].to_list() == [4, None]
    assert requests["finish_reason"].to_list() == ["abort", None]
    assert requests["dataset"].to_list() == ["live", "live"]
    assert requests["group"].n_unique() == 1, "equal prompts are one group"
    assert [f for f in run_checks(log) if f.severity != "note"] == []


def test_greedy_drafting_uses_the_shadow_estimator(engine: Any) -> None:
    made = engine(StandaloneARSpeculator("greedy"))
    made.serve()
    drafts = made.read().drafts.collect()
    assert drafts["logit_qmax"].equals(drafts["live_feature"].alias("logit_qmax"))
    assert drafts["entropy"].null_count() == drafts.height


def test_without_shadow_and_without_logits_features_are_null(engine: Any) -> None:
    made = engine(StandaloneARSpeculator("greedy"), environment={"DRAFTLAB_SHADOW": "0"})
    made.serve()
    log = made.read()
    assert log.drafts.collect()["logit_qmax"].null_count() > 0
    assert "greedy" in log.runs[0].metadata["columns"]["logit_qmax"]
    assert log.runs[0].metadata["estimator_start"] is None


def test_dummy_runs_are_no_steps(engine: Any) -> None:
    made = engine()
    made.speculator.propose(fake_vllm.batch([0, 1]), torch.zeros(4, 1), dummy_run=True)
    made.serve()
    assert made.read().steps.collect()["step"].to_list() == [0, 1]


def test_fewer_drafts_asked_for_are_fewer_rows(engine: Any) -> None:
    made = engine()
    made.runner.add_requests(scheduled(new_request("a")))
    made.speculator.observe_verification(*(torch.tensor([x]) for x in (0, 1, 0)))
    made.speculator.propose(fake_vllm.batch([0]), torch.zeros(4, 1), num_speculative_tokens=1)
    log = made.read()
    assert log.drafts.collect()["position"].to_list() == [0]
    assert log.steps.collect()["offered_k"].to_list() == [1]


def test_a_verdict_without_a_proposal_is_a_step(engine: Any) -> None:
    made = engine()
    made.serve()
    made.speculator.observe_verification(*(torch.tensor([x]) for x in (1, 2, 1)))
    made.runner.step([1], [1], [2])
    steps = made.read().steps.collect()
    assert steps["step"].to_list() == [0, 1, 2, 3]
    assert steps["num_proposed"].to_list() == [4, 4, None, 2]


def test_the_budget_is_what_adaptive_verification_left(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine(enable_adaptive_verification=True)
    made.runner.add_requests(scheduled(new_request("a"), new_request("b")))
    made.runner.step([0, 1], [1, 1], [0, 0])
    plain = fake_vllm.batch

    def trimmed(slots: list[int]) -> Any:
        made_batch = plain(slots)
        made_batch.num_draft_tokens = 1
        return made_batch

    monkeypatch.setattr(fake_vllm, "batch", trimmed)
    made.runner.step([0, 1], [2, 1], [0, 0])
    log = made.read()
    assert log.runs[0].metadata["adaptive_verification"] == "vllm"
    steps = log.steps.collect()
    assert steps["budget"].to_list() == [4, 1]
    assert steps["budget_reason"].to_list() == ["all", "cost"]
    assert steps["num_non_draft_tokens"].to_list() == [2, 2]
    graded = log.drafts.collect().drop_nulls("verify_step")
    assert graded["admitted"].to_list() == [True, False, False, False]


@pytest.mark.parametrize(
    ("params", "transforms", "bits"),
    [
        ({"presence_penalty": 0.1}, "presence_penalty", Excluded.TARGET_ONLY_TRANSFORM),
        ({"bad_words": ["x"]}, "bad_words", Excluded.TARGET_ONLY_TRANSFORM),
        ({"allowed_token_ids": [1]}, "allowed_tokens", Excluded.TARGET_ONLY_TRANSFORM),
        ({"structured_outputs": object()}, "grammar", Excluded.GRAMMAR),
        ({"top_p": 0.9, "top_k": 5, "seed": 3}, None, Excluded(0)),
    ],
)
def test_transforms_of_the_target_only_are_marked(
    engine: Any, params: dict[str, Any], transforms: str | None, bits: Excluded
) -> None:
    made = engine()
    made.runner.add_requests(scheduled(new_request("a", **params)))
    made.runner.step([0], [1], [0])
    made.runner.step([0], [2], [1])
    log = made.read()
    assert log.requests.collect()["transforms"].to_list() == [transforms]
    graded = log.drafts.collect().drop_nulls("verify_step")
    assert set(graded["excluded"].to_list()) == {int(bits)}


def test_warm_up_and_foreign_methods_are_marked(engine: Any) -> None:
    made = engine(rejection_sample_method="block")
    made.runner.add_requests(scheduled(new_request("_warmup_0_")))
    made.runner.step([0], [1], [0])
    log = made.read()
    assert log.requests.collect()["dataset"].to_list() == ["warmup"]
    wanted = int(Excluded.WARMUP | Excluded.FOREIGN_METHOD)
    assert set(log.drafts.collect()["excluded"].to_list()) == {wanted}


def test_a_preempted_request_keeps_its_key(engine: Any) -> None:
    made = engine()
    made.serve()
    made.runner.finish_requests(scheduled(preempted=("b-01234567",)))
    made.runner.add_requests(scheduled(new_request("b-01234567")))
    made.runner.step([0], [1], [0])
    log = made.read()
    assert log.requests.collect().height == 2
    assert log.drafts.collect()["request"].to_list()[-2:] == [1, 1]


@pytest.mark.parametrize(
    "site", ["start", "on_add", "on_finish", "on_verdict", "on_propose", "start_timer"]
)
def test_an_error_switches_the_hook_off_and_nothing_else(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, site: str
) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(VllmHook, site, fail)
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        made = engine()
        assert made.runner.add_requests(scheduled(new_request("a"))) == "added"
        for sampled in (1, 3, 2):
            assert made.runner.step([0], [sampled], [0]).tolist() == [[1, 2]]
        assert made.runner.finish_requests(scheduled(finished=("a",))) == "finished"
    assert len(made.speculator.observed) == 3
    [record] = caplog.records
    assert "on purpose" in record.getMessage()


def test_an_error_of_the_log_does_not_reach_the_engine(
    engine: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("a file where the log should be")
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        made = engine()
        made.serve()
        made.runner.shutdown()
    assert "stops logging" in caplog.text


@pytest.mark.parametrize("missing", ["add_requests", "finish_requests"])
def test_an_unknown_version_gets_one_warning_and_no_hook(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    missing: str,
) -> None:
    monkeypatch.setenv("DRAFTLAB_LOG", str(tmp_path / "log"))
    runner_class = fake_vllm.install(monkeypatch)
    delattr(runner_class, missing)
    register()
    speculator = StandaloneARSpeculator()
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        runner_class(speculator, config())
    assert missing in caplog.text
    assert "propose" not in vars(speculator)
    assert not (tmp_path / "log").exists()


def test_a_vllm_without_the_module_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTLAB_LOG", str(tmp_path))
    fake_vllm.install(monkeypatch)
    monkeypatch.setattr(hook_module, "SPEC_DECODE", "vllm.v1.worker.gpu.moved")
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        register()
    assert "not known" in caplog.text


def test_ngram_has_nothing_to_log(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="vllm.draftlab"):
        made = engine(NgramGPUSpeculator())
        made.serve()
    assert "n-gram" in caplog.text
    assert not made.log.exists()


def test_other_ranks_run_the_shadow_but_do_not_log(engine: Any) -> None:
    """Ranks whose estimators disagree could hang one another."""
    made = engine(rank=1)
    made.serve()
    assert made.speculator.acceptance_estimator is not None
    assert not made.log.exists()


def test_local_argmax_is_never_given_an_estimator(engine: Any) -> None:
    """VLLM refuses to start with both."""
    speculator = StandaloneARSpeculator("greedy")
    speculator.use_local_argmax_reduction = True
    made = engine(speculator)
    made.serve()
    assert speculator.acceptance_estimator is None
    assert "local_argmax" in made.read().runs[0].metadata["columns"]["live_feature"]


def test_full_rings_drop_and_count(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_module, "_FLOAT_STEPS", 0)
    made = engine()
    made.serve()
    log = made.read()
    assert log.drafts.collect().height == 0
    assert log.steps.collect()["num_dropped"].to_list() == [2, 2]
    assert log.runs[0].metadata["dropped_proposals"] == 4
    assert log.requests.collect()["output_tokens"].to_list() == [4, None]


def test_a_lost_verdict_is_counted_too(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_module, "_INTEGER_STEPS", 0)
    made = engine()
    made.serve()
    log = made.read()
    assert log.steps.collect()["num_dropped"].to_list() == [2, 2]
    assert log.requests.collect()["output_tokens"].to_list() == [None, None]
