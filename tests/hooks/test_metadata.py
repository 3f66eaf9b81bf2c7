"""What vLLM's objects say of a run and of a request, on plain stand-ins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from draftlab.hooks.metadata import (
    describe_request,
    describe_run,
    list_transforms,
    read_estimator,
    read_facts,
)
from draftlab.hooks.settings import HookSettings
from draftlab.schema import Excluded
from tests.hooks.fake_vllm import (
    Estimator,
    StandaloneARSpeculator,
    config,
    new_request,
    sampling_params,
)

if TYPE_CHECKING:
    from draftlab.hooks.join import Arrival

SETTINGS = HookSettings(log=Path("log"), salt="s")


def describe(new: Any, **options: Any) -> tuple[Arrival, dict[str, Any], list[int] | None]:
    given: dict[str, Any] = {
        "request": 5, "slot": 2, "max_model_len": 64, "verification": "standard",
        "watermarked": False, "settings": SETTINGS,
    }  # fmt: skip
    return describe_request(new, **given | options)


@pytest.mark.parametrize(
    ("set_to", "names"),
    [
        ({}, []),
        ({"presence_penalty": -0.5, "min_tokens": 3}, ["presence_penalty", "min_tokens"]),
        ({"repetition_penalty": 0.9}, ["repetition_penalty"]),
        ({"frequency_penalty": 0.1, "logit_bias": {1: 2.0}}, ["frequency_penalty", "logit_bias"]),
        ({"thinking_token_budget": 0}, ["thinking_budget"]),
        ({"structured_outputs": object(), "bad_words": ["x"]}, ["bad_words", "grammar"]),
        ({"bad_words": []}, []),
    ],
)
def test_transforms_are_those_that_are_set(set_to: dict[str, Any], names: list[str]) -> None:
    assert list_transforms(sampling_params(**set_to)) == names


def test_a_parameter_that_a_version_lacks_is_not_set() -> None:
    bare = SimpleNamespace(temperature=1.0, top_p=1.0)
    assert list_transforms(bare) == []
    assert list_transforms(bare, watermarked=True) == ["watermark"]
    assert list_transforms(SimpleNamespace(watermarking=False), watermarked=True) == []


def test_a_request_as_the_joiner_and_the_log_want_it() -> None:
    new = new_request("chatcmpl-gsm8k/17/3-0123abcd", [1, 2, 3, 4], max_tokens=9, top_p=0.9,
                      top_k=50, stop_token_ids=[7], eos_token_id=2, min_tokens=1)  # fmt: skip
    arrival, row, prompt = describe(new)
    assert (arrival.request, arrival.slot, arrival.prompt_tokens) == (5, 2, 4)
    assert (arrival.max_output, arrival.min_output, arrival.emitted) == (9, 1, 0)
    assert arrival.stop_tokens == (7, 2)
    assert row["dataset"] == "gsm8k"
    assert row["external_id"] == SETTINGS.hash("chatcmpl-gsm8k/17/3")
    assert row["group"] == f"gsm8k/{SETTINGS.hash('17')}"
    assert prompt is None  # the id names the group
    assert (row["top_p"], row["top_k"], row["min_p"]) == (0.9, 50, None)
    assert row["transforms"] == "min_tokens"


def test_without_a_group_in_its_id_the_prompt_tells_equal_ones() -> None:
    new = new_request("a-0123abcd", [1, 2, 3])
    new.prefill_token_ids = [1, 2, 3, 9, 9]  # it was preempted behind two tokens
    arrival, row, prompt = describe(new)
    assert prompt == [1, 2, 3]
    assert row["group"] == "live/request-5"
    assert arrival.emitted == 2
    assert arrival.max_output == 20
    assert describe(new_request("b", [1] * 60))[0].max_output == 4  # what the context leaves
    raw = describe(new, settings=HookSettings(log=Path("log"), raw_ids=True))[1]
    assert raw["external_id"] == "a"


@pytest.mark.parametrize(
    ("name", "params", "verification", "bits"),
    [
        ("a", {}, "standard", Excluded(0)),
        ("_warmup_0_", {}, "standard", Excluded.WARMUP),
        ("a", {"structured_outputs": object()}, "standard", Excluded.GRAMMAR),
        ("a", {"bad_words": ["x"], "structured_outputs": object()}, "standard",
         Excluded.GRAMMAR | Excluded.TARGET_ONLY_TRANSFORM),
        ("_v2_mixed_warmup_3", {}, "block", Excluded.WARMUP | Excluded.FOREIGN_METHOD),
    ],
)  # fmt: skip
def test_bits_of_a_whole_request(
    name: str, params: dict[str, Any], verification: str, bits: Excluded
) -> None:
    arrival, row, _ = describe(new_request(name, **params), verification=verification)
    assert arrival.excluded == int(bits)
    assert (row["dataset"] == "warmup") is bool(bits & Excluded.WARMUP)


def test_facts_are_read_from_the_speculator_and_its_configuration() -> None:
    speculator = StandaloneARSpeculator()
    speculator.acceptance_estimator = Estimator()
    facts = read_facts(speculator, config(), SETTINGS)
    assert (facts.speculator, facts.drafting) == ("StandaloneARSpeculator", "probabilistic")
    assert (facts.adaptive, facts.shadow, facts.has_estimator) == (False, True, True)
    greedy = StandaloneARSpeculator("greedy")
    facts = read_facts(greedy, config(), SETTINGS)
    assert (facts.drafting, facts.shadow, facts.has_logits) == ("greedy", False, False)
    with pytest.raises(AssertionError, match="the expected estimator is missing"):
        read_facts(greedy, config(enable_adaptive_verification=True), SETTINGS)


def test_the_run_is_described_and_its_estimator_kept_as_plain_numbers() -> None:
    speculator = StandaloneARSpeculator()
    estimator = speculator.acceptance_estimator = Estimator()
    estimator.slope, estimator._steps_since_refit = torch.tensor([0.75]), 6
    assert read_estimator(speculator) == {
        "slope": 0.75, "intercepts": pytest.approx([-0.2, -0.2]), "info": [[0.0] * 3] * 2,
        "grad": [[0.0] * 2] * 2, "counts": [0.0, 0.0], "steps_since_refit": 6,
        "refit_interval": 100, "damping": 50.0, "ridge": 1e-3,
    }  # fmt: skip
    facts = read_facts(speculator, config(), SETTINGS)
    found = describe_run(speculator, config(), torch.device("cpu"), facts, SETTINGS)
    known = {"target": "tiny", "drafter": "tiny-drafter", "method": "draft_model", "device": "cpu",
             "drafting": "probabilistic", "verification": "standard", "dtype": "float32",
             "num_speculative_tokens": 2, "vocab_size": 8, "feature_source": "head",
             "adaptive_verification": "off", "deployment": "abc", "replica": 0}  # fmt: skip
    assert {name: found[name] for name in known} == known
    assert found["estimator_start"]["slope"] == 0.75
    without = config(method="ngram", draft_model_config=None)
    assert describe_run(speculator, without, torch.device("cpu"), facts, SETTINGS)["drafter"] == (
        "ngram"
    )
