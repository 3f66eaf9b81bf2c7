"""Run one engine and write down what happened, for the tests to compare.

``python scenario.py NAME FOLDER``: the log goes to FOLDER/log, the spy's record of what vLLM held
to FOLDER/record.pkl. Scenarios are the entries of `SCENARIOS`.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

K = 4
REFIT_INTERVAL = 7
"""Short, so that a small run holds several refits."""


@dataclass(frozen=True)
class Scenario:
    """What to run."""

    drafting: str = "probabilistic"
    asynchronous: bool = False
    hook: str = "on"
    """on, off, raising (every part of the hook raises), or plugin (other processes)."""
    churn: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    warmup: bool = False


SCENARIOS = {
    "plain": Scenario(environment={"DRAFTLAB_TARGET": "1", "DRAFTLAB_TOKENS": "1"}, warmup=True),
    "plain_off": Scenario(hook="off", warmup=True),
    "raising": Scenario(hook="raising", warmup=True),
    "churn": Scenario(churn=True, environment={"DRAFTLAB_RAW_IDS": "1", "DRAFTLAB_TOKENS": "1"}),
    "greedy": Scenario(drafting="greedy", environment={"DRAFTLAB_TOKENS": "1"}),
    "greedy_off": Scenario(drafting="greedy", hook="off"),
    "async": Scenario(asynchronous=True, churn=True, environment={"DRAFTLAB_RAW_IDS": "1"}),
    "collect": Scenario(hook="plugin"),
    "plugin": Scenario(hook="plugin", churn=True, environment={"DRAFTLAB_RAW_IDS": "1"}),
}


def requests(scenario: Scenario) -> list[tuple[str, list[int], dict[str, Any]]]:
    """Return (id, prompt, sampling parameters) of the requests to serve."""
    common = {"ignore_eos": True, "detokenize": False}
    if not scenario.churn:
        return [
            (
                f"plain/{i}",
                [(7 * i + j) % 250 for j in range(5 + i)],
                {"temperature": 1.0, "seed": i, "max_tokens": 24, **common},
            )
            for i in range(4)
        ]
    styles: list[dict[str, Any]] = [
        {"temperature": 0.0, "max_tokens": 14},
        {"temperature": 1.0, "max_tokens": 11},
        {"temperature": 0.7, "top_p": 0.9, "max_tokens": 13},
        {"temperature": 1.3, "top_k": 40, "max_tokens": 12},
        {"temperature": 1.0, "presence_penalty": 0.5, "max_tokens": 9},
        {"temperature": 1.0, "max_tokens": 20, "stop_token_ids": list(range(0, 256, 5))},
        {"temperature": 1.0, "min_tokens": 2, "max_tokens": 8},
    ]
    return [
        (
            f"{'even' if i % 2 == 0 else 'odd'}/{i // 2}/0",
            [(11 * i + j) % 250 for j in range(19 + 4 * (i % 3))],
            {"seed": 100 + i, **style, **common},
        )
        for i, style in enumerate(styles)
    ]


class Spy:
    """Keeps what vLLM held at every verdict and proposal, independently of the hook."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.speculator: Any = None

    def wrap(self, speculator: Any) -> None:
        """Put the spy on a speculator, below the hook."""
        self.speculator = speculator
        propose, observe = speculator.propose, speculator.observe_verification

        @functools.wraps(observe)
        def spied_observe(idx: Any, sampled: Any, rejected: Any) -> Any:
            self.events.append(
                {
                    "kind": "verdict",
                    "slots": idx.numpy().copy(),
                    "sampled": sampled.numpy().copy(),
                    "rejected": rejected.numpy().copy(),
                }
            )
            return observe(idx, sampled, rejected)

        @functools.wraps(propose)
        def spied_propose(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = propose(input_batch, *args, **kwargs)
            if not kwargs.get("dummy_run"):
                self.events.append(self._proposal(input_batch, drafts))
            return drafts

        speculator.propose, speculator.observe_verification = spied_propose, spied_observe

    def _proposal(self, batch: Any, drafts: Any) -> dict[str, Any]:
        speculator, slots = self.speculator, batch.idx_mapping.numpy().copy()
        estimator, logits = speculator.acceptance_estimator, speculator.draft_logits
        event = {
            "kind": "proposal",
            "slots": slots,
            "ids": list(batch.req_ids),
            "tokens": drafts.numpy().copy(),
            "temperature": speculator.temperature.numpy()[slots].copy(),
            "logits": None if logits is None else logits[slots].float().numpy().copy(),
        }
        if estimator is not None:
            event["features"] = estimator.features.numpy()[slots].copy()
            event["predictions"] = estimator.predictions.numpy()[slots].copy()
        return event

    def final_state(self) -> dict[str, Any] | None:
        """Return the estimator's coefficients at the end."""
        estimator = self.speculator.acceptance_estimator
        if estimator is None:
            return None
        names = ("slope", "intercepts", "info", "grad", "counts")
        return {name: getattr(estimator, name).numpy().copy() for name in names}


def spy_on_vllm() -> Spy:
    """Install a spy that every speculator gets before the hook does."""
    from vllm.v1.worker.gpu import spec_decode
    from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator

    OnlineAcceptanceEstimator.REFIT_INTERVAL = REFIT_INTERVAL
    spy, original = Spy(), spec_decode.init_speculator

    @functools.wraps(original)
    def init_speculator(*args: Any, **kwargs: Any) -> Any:
        speculator = original(*args, **kwargs)
        spy.wrap(speculator)
        return speculator

    spec_decode.init_speculator = init_speculator
    _spy_on_verification(spy)
    return spy


def _spy_on_verification(spy: Spy) -> None:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    original = RejectionSampler._verify

    @functools.wraps(original)
    def spied_verify(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        names = inspect.signature(original).parameters
        given = dict(zip(list(names)[1:], args, strict=False)) | kwargs
        spy.events.append(
            {
                "kind": "target",
                "logits": result[0].float().numpy().copy(),
                "tokens": given["verify_draft_sampled"].numpy().copy(),
                "slots": given["expanded_idx_mapping"].numpy().copy(),
                "positions": given["expanded_local_pos"].numpy().copy(),
            }
        )
        return result

    RejectionSampler._verify = spied_verify


def break_the_hook() -> list[str]:
    """Make every part of the hook raise, and keep it from switching itself off."""
    from draftlab.hooks.vllm import VllmHook

    raised: list[str] = []
    for name in [n for n in vars(VllmHook) if n.startswith(("on_", "start"))]:

        def fail(self: Any, *args: Any, _name: str = name, **kwargs: Any) -> None:
            raised.append(_name)
            raise RuntimeError(f"{_name} fails on purpose")

        setattr(VllmHook, name, fail)
    VllmHook.switch_off = lambda *_: None
    return raised


def make_engine(scenario: Scenario, folder: Path) -> Any:
    from vllm import LLM

    from tests.conformance.vllm.models import make_pair

    target, drafter = make_pair(folder)
    speculative = {
        "model": drafter,
        "method": "draft_model",
        "num_speculative_tokens": K,
        "draft_sample_method": scenario.drafting,
    }
    # Too few for three long requests at once, so that some are preempted.
    few_blocks = {"block_size": 32, "num_gpu_blocks_override": 5} if scenario.churn else {}
    return LLM(
        target,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        max_num_seqs=3 if scenario.churn else 4,
        max_num_batched_tokens=24 if scenario.churn else 64,
        async_scheduling=scenario.asynchronous,
        speculative_config=speculative,
        disable_log_stats=False,
        **few_blocks,
    )


def read_counters(llm: Any) -> dict[str, Any]:
    """Return vLLM's own counters of speculative decoding."""
    values = {}
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            values[metric.name] = getattr(metric, "value", None) or getattr(metric, "values", None)
    return values


def warm_up(llm: Any) -> None:
    """Run the warm-up that a GPU worker runs at its start."""
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    warmup_kernels(worker.model_runner, worker.execute_model, worker.sample_tokens)


def serve(llm: Any, scenario: Scenario) -> dict[str, list[int]]:
    """Serve the requests and return the tokens of each."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    for name, prompt, params in requests(scenario):
        engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(**params))
    outputs: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                outputs[output.request_id] = list(output.outputs[0].token_ids)
    return outputs


def collect(folder: Path) -> None:
    """Collect with an offline engine over prompts, as the command line does."""
    from draftlab.engine.prompts import Prompt
    from draftlab.hooks.offline import VllmSettings, collect_vllm
    from tests.conformance.vllm.models import make_pair

    target, drafter = make_pair(folder)
    settings = VllmSettings(
        target=target,
        drafter=drafter,
        method="draft_model",
        num_speculative_tokens=K,
        temperature=1.0,
        top_p=1.0,
        concurrency=2,
        max_new_tokens=8,
        dtype="float32",
        raw_ids=True,
        engine_options={"max_model_len": 64, "enforce_eager": True, "max_num_batched_tokens": 64},
    )
    prompts = [Prompt("a", "chat", ("hello", "and?")), Prompt("b", "code", ("x = 1",))]
    run = collect_vllm(folder / "log", settings, prompts)
    (folder / "record.pkl").write_bytes(pickle.dumps({"outputs": {}, "run": run.name}))


def main(name: str, folder: Path) -> None:
    """Run a scenario."""
    if name == "collect":
        collect(folder)
        return
    scenario = SCENARIOS[name]
    os.environ |= scenario.environment
    os.environ["DRAFTLAB_LOG"] = str(folder / "log")
    if scenario.hook == "off":
        del os.environ["DRAFTLAB_LOG"]
    spy = raised = None
    if scenario.hook != "plugin":
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        spy = spy_on_vllm()
    if scenario.hook == "raising":
        raised = break_the_hook()
    llm = make_engine(scenario, folder)
    if scenario.warmup:
        warm_up(llm)
    outputs = serve(llm, scenario)
    state = spy.final_state() if spy is not None else None
    counters = read_counters(llm)
    llm.llm_engine.engine_core.shutdown()
    record = {"outputs": outputs, "events": spy.events if spy else None, "state": state}
    record |= {"counters": counters}
    (folder / "record.pkl").write_bytes(pickle.dumps(record | {"raised": raised}))
    sys.stdout.write(json.dumps({"requests": len(outputs)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
