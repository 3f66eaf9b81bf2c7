"""A stand-in for the parts of vLLM that the hook touches, driven by hand."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import pytest

K, VOCAB, SLOTS = 2, 8, 4
NAMES = (
    "vllm",
    "vllm.v1",
    "vllm.v1.worker",
    "vllm.v1.worker.gpu",
    "vllm.v1.worker.gpu.spec_decode",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.distributed",
    "vllm.distributed.parallel_state",
)


class Estimator:
    """Memory of vLLM's estimator."""

    REFIT_INTERVAL, DAMPING_OBSERVATIONS, L2 = 100, 50.0, 1e-3

    def __init__(self) -> None:
        self._steps_since_refit = 0
        self.slope, self.intercepts = torch.tensor([0.5]), torch.full((K,), -0.2)
        self.info, self.grad, self.counts = torch.zeros(K, 3), torch.zeros(K, 2), torch.zeros(K)
        self.features = torch.arange(SLOTS * K, dtype=torch.float32).view(SLOTS, K)
        self.predictions = self.features / 100


class StandaloneARSpeculator:
    """A drafter that proposes the tokens it is told to."""

    def __init__(self, drafting: str = "probabilistic") -> None:
        self.use_acceptance_estimator = False
        self.use_local_argmax_reduction = False
        self.acceptance_estimator: Estimator | None = None
        self.temperature = torch.ones(SLOTS)
        self.draft_logits: torch.Tensor | None = None
        if drafting == "probabilistic":
            self.draft_logits = torch.randn(
                SLOTS, K, VOCAB, generator=torch.Generator().manual_seed(0)
            )
        self.observed: list[Any] = []

    def load_model(self, target: Any) -> None:
        if self.use_acceptance_estimator:
            self.acceptance_estimator = Estimator()

    def observe_verification(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        self.observed.append((idx_mapping, num_sampled, num_rejected))

    def propose(
        self,
        input_batch: Any,
        last_sampled: Any,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        return torch.tensor([[1, 2]] * input_batch.num_reqs)


class NgramGPUSpeculator(StandaloneARSpeculator):
    """Of a name that the hook knows to have nothing to log."""


class RequestState:
    """Slots of requests."""

    def __init__(self) -> None:
        self.max_num_reqs, self.max_model_len = SLOTS, 64
        self.req_id_to_index: dict[str, int] = {}


def runner_class() -> Any:
    """Return a fresh class of model runners, as the hook patches it."""

    class GPUModelRunner:
        def __init__(self, speculator: Any, config: Any) -> None:
            self.req_states = RequestState()
            module = importlib.import_module("vllm.v1.worker.gpu.spec_decode")
            self.wanted = speculator
            module.wanted = speculator  # type: ignore[attr-defined]
            self.speculator = module.init_speculator(config, torch.device("cpu"), self.req_states)

        def add_requests(self, scheduler_output: Any) -> str:
            for slot, new in enumerate(scheduler_output.scheduled_new_reqs):
                self.req_states.req_id_to_index[new.req_id] = slot
            return "added"

        def finish_requests(self, scheduler_output: Any) -> str:
            for name in scheduler_output.finished_req_ids:
                self.req_states.req_id_to_index.pop(name, None)
            return "finished"

        def shutdown(self) -> None:
            return None

        def step(self, slots: list[int], sampled: list[int], rejected: list[int]) -> torch.Tensor:
            """Do one step for the requests in slots."""
            idx = torch.tensor(slots)
            self.speculator.observe_verification(
                idx,
                torch.tensor(sampled, dtype=torch.int32),
                torch.tensor(rejected, dtype=torch.int32),
            )
            drafts: torch.Tensor = self.speculator.propose(batch(slots), torch.full((SLOTS, 1), 7))
            return drafts

    return GPUModelRunner


def batch(slots: list[int]) -> Any:
    """Return an input batch of requests with K drafts each."""
    n = len(slots)
    return SimpleNamespace(
        num_reqs=n,
        req_ids=[f"r{s}" for s in slots],
        idx_mapping_np=np.array(slots),
        num_scheduled_tokens=np.full(n, K + 1),
        num_draft_tokens=n * K,
        num_draft_tokens_per_req=np.full(n, K),
        num_tokens=n * (K + 1),
        num_tokens_after_padding=8,
    )


def sampling_params(**given: Any) -> Any:
    """Return sampling parameters with nothing set."""
    plain: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 20,
        "min_tokens": 0,
        "stop": [],
        "stop_token_ids": [],
        "eos_token_id": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "bad_words": None,
        "allowed_token_ids": None,
        "logit_bias": None,
        "structured_outputs": None,
        "thinking_token_budget": None,
    }
    return SimpleNamespace(**(plain | given))


def new_request(name: str, prompt: list[int] | None = None, **params: Any) -> Any:
    """Return a request as the scheduler hands it over."""
    tokens = prompt or [1, 2, 3]
    return SimpleNamespace(
        req_id=name,
        prompt_len=len(tokens),
        prompt_token_ids=tokens,
        prefill_token_ids=tokens,
        sampling_params=sampling_params(**params),
    )


def scheduled(*new: Any, finished: tuple[str, ...] = (), preempted: tuple[str, ...] = ()) -> Any:
    """Return a scheduler's output."""
    return SimpleNamespace(
        scheduled_new_reqs=list(new),
        finished_req_ids=set(finished),
        preempted_req_ids=set(preempted) or None,
    )


def config(**speculative: Any) -> Any:
    """Return vLLM's configuration, as far as the hook reads it."""
    spec = {
        "num_speculative_tokens": K,
        "method": "draft_model",
        "rejection_sample_method": "standard",
        "enable_adaptive_verification": False,
        "draft_model_config": SimpleNamespace(model="tiny-drafter"),
    }
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**(spec | speculative)),
        parallel_config=SimpleNamespace(data_parallel_rank=0),
        model_config=SimpleNamespace(
            model="tiny", dtype=torch.float32, seed=0, get_vocab_size=lambda: VOCAB
        ),
        instance_id="abc",
    )


def install(monkeypatch: pytest.MonkeyPatch, *, rank: int = 0) -> Any:
    """Put the stand-in into sys.modules; return its class of model runners."""
    modules = {name: ModuleType(name) for name in NAMES}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
        monkeypatch.setitem(sys.modules, name, module)
    spec: Any = modules["vllm.v1.worker.gpu.spec_decode"]
    spec.init_speculator = lambda vllm_config, device, req_states: spec.wanted
    state: Any = modules["vllm.distributed.parallel_state"]
    state.get_tp_group = lambda: SimpleNamespace(rank_in_group=rank)
    runner: Any = modules["vllm.v1.worker.gpu.model_runner"]
    runner.GPUModelRunner = runner_class()
    runner.init_speculator = spec.init_speculator
    modules["vllm"].__version__ = "0.99"  # type: ignore[attr-defined]
    return runner.GPUModelRunner
