"""What vllm-doctor says of a configuration, without vLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from draftlab.errors import InputError
from draftlab.hooks.doctor import Diagnosis, Installation, vllm_doctor

if TYPE_CHECKING:
    from pathlib import Path

GPU = Installation("0.33.0", on_cpu=False, has_triton=True)
CPU = Installation("0.33.0", on_cpu=True, has_triton=False)
EAGLE = {"method": "eagle3", "model": "x", "draft_sample_method": "probabilistic"}


def ask(
    config: Any, installation: Installation = GPU, environment: dict[str, str] | None = None
) -> Diagnosis:
    variables = {"DRAFTLAB_LOG": "log"} | (environment or {})
    return vllm_doctor(config, environment=variables, installation=installation)


def test_a_good_configuration_records_every_feature() -> None:
    found = ask(EAGLE)
    assert found.works
    assert (found.problems, found.notes) == ([], [])
    recorded = [name for name, yes, _ in found.table() if yes == "yes"]
    assert recorded == [
        "logit_qmax",
        "top2_margin",
        "entropy",
        "logit_q_sampled",
        "live_feature",
        "live_prediction",
    ]


def test_json_text_is_taken_as_well() -> None:
    assert ask(json.dumps(EAGLE)) == ask(EAGLE)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="speculative config"):
        ask(text)


def test_the_default_is_greedy_and_the_note_says_what_helps() -> None:
    found = ask({"method": "eagle", "model": "x"})
    assert found.drafting == "greedy"
    assert any('"draft_sample_method": "probabilistic"' in note for note in found.notes)
    table = {name: (yes, remark) for name, yes, remark in found.table()}
    assert table["logit_qmax"] == ("yes", "as the estimator stored it: float32, clipped at 40")
    assert table["entropy"][0] == "no"


def test_model_runner_v1_on_a_cpu_is_refused_with_its_cause() -> None:
    [problem] = ask(EAGLE, CPU).problems
    assert "expand_batch_to_tokens" in problem
    assert not any(yes == "yes" for _, yes, _ in ask(EAGLE, CPU).table())
    assert ask(EAGLE, CPU, {"VLLM_USE_V2_MODEL_RUNNER": "1"}).works


def test_model_runner_v1_on_a_gpu_is_unknown_to_the_hook() -> None:
    [problem] = ask(EAGLE, GPU, {"VLLM_USE_V2_MODEL_RUNNER": "0"}).problems
    assert "V2 only" in problem
    assert not ask({"method": "suffix"}).works


@pytest.mark.parametrize(
    ("installation", "environment", "says"),
    [
        (Installation("1", False, True, missing=("GPUModelRunner.add_requests",)), {}, "lacks"),
        (Installation("1", False, True, plugin=False), {}, "does not find the plugin"),
        (GPU, {"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS=other"),
    ],
)
def test_what_keeps_the_hook_out_is_named(
    installation: Installation, environment: dict[str, str], says: str
) -> None:
    [problem] = ask(EAGLE, installation, environment).problems
    assert says in problem


def test_an_allowed_plugin_is_no_problem() -> None:
    assert ask(EAGLE, GPU, {"VLLM_PLUGINS": "other,draftlab"}).works


@pytest.mark.parametrize(
    ("config", "speculator"),
    [
        ({"model": "yuhuili/EAGLE3-LLaMA3.1"}, "EagleSpeculator"),
        ({"model": "tiny"}, "StandaloneARSpeculator"),
        ({"method": "deepseek_mtp"}, "MTPSpeculator"),
        ({"method": "dspark", "model": "x"}, "DSparkSpeculator"),
        ({"method": "ngram"}, "NgramGPUSpeculator"),
        ({"method": "dflash", "model": "nowhere"}, "DFlashSpeculator"),
    ],
)
def test_the_speculator_follows_from_method_or_name(
    config: dict[str, Any], speculator: str
) -> None:
    assert ask(config).speculator == speculator


def test_the_candidate_walk_is_told_by_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["DFlash2DraftModel"]}')
    found = ask(EAGLE | {"method": "dflash", "model": str(tmp_path)})
    assert found.speculator == "DFlash2Speculator"
    assert "candidate walk" in found.columns["live_feature"]


def test_ngram_has_nothing_to_log() -> None:
    assert not ask({"method": "ngram"}).works


def test_notes_tell_what_a_reader_of_the_log_should_know() -> None:
    found = ask(EAGLE | {"rejection_sample_method": "block", "enable_adaptive_verification": True})
    assert any("foreign_method" in note for note in found.notes)
    assert any("trimmed" in note for note in found.notes)
    unset = vllm_doctor(EAGLE, environment={}, installation=GPU)
    assert any("DRAFTLAB_LOG" in note for note in unset.notes)


def test_the_whole_is_plain_data() -> None:
    assert json.loads(json.dumps(ask(EAGLE).to_dict()))["works"] is True
