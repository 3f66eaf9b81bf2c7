"""Audit one model runner of vLLM: many short generations against the exact target.

``python runner.py RUNNER FOLDER`` with a key of `RUNNERS` writes FOLDER/verdict.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 6
LENGTH = 3
"""Tokens of a generation: the first comes with the prompt, the others through speculation."""
K = 2
PROMPT = (1, 4, 2)
STATED = {"tv": 0.15, "power": 0.9, "alpha": 1e-4}
SECONDS = 900.0
RUNNERS = {
    "v1": {"VLLM_USE_V2_MODEL_RUNNER": "0", "TRITON_INTERPRET": "0"},
    "v1_mended": {"VLLM_USE_V2_MODEL_RUNNER": "0", "TRITON_INTERPRET": "0"},
    "v2": {},
}
"""Environment of each, beside that of run.py; without the interpreter nothing is patched."""


def make_engine(folder: Path) -> tuple[Any, str]:
    """Return an engine that speculates on a tiny pair, and the path of its target."""
    from vllm import LLM

    from tests.conformance.vllm.models import make_pair

    target, drafter = make_pair(folder, vocab=VOCAB)
    llm = LLM(
        target,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        async_scheduling=False,
        speculative_config={
            "model": drafter,
            "method": "draft_model",
            "num_speculative_tokens": K,
            "draft_sample_method": "probabilistic",
        },
        disable_log_stats=False,
    )
    return llm, target


def make_sampler(llm: Any) -> Callable[[int], list[tuple[int, ...]]]:
    """Return what draws so many generations at temperature 1, each with a seed of its own."""
    from vllm import SamplingParams

    made = 0

    def sample(n: int) -> list[tuple[int, ...]]:
        nonlocal made
        common = {"max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}
        params = [SamplingParams(temperature=1.0, seed=made + i, **common) for i in range(n)]
        made += n
        prompts = [{"prompt_token_ids": list(PROMPT)} for _ in range(n)]
        found = llm.generate(prompts, params, use_tqdm=False)
        return [tuple(output.outputs[0].token_ids) for output in found]

    return sample


def exact_outputs(target: str) -> dict[tuple[int, ...], float]:
    """Return the probability of every generation, by transformers in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        tails = list(exact)
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + tail for tail in tails])).logits[:, -1]
        exact = {
            (*tail, token): exact[tail] * p
            for tail, row in zip(tails, logits.softmax(-1).tolist(), strict=True)
            for token, p in enumerate(row)
        }
    return exact


def mend() -> None:
    """Replace the function that leaves V1's temperatures uninitialised on a CPU."""
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(
        x: Any, ends: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
        wide = torch.where(x == replace_from, replace_to, x) if replace_from else x
        return wide.repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand


def main(name: str, folder: Path) -> None:
    """Audit a runner."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from draftlab.studies.audit.conformity import audit_engine

    if name == "v1_mended":
        mend()
    llm, target = make_engine(folder)
    found = audit_engine(
        make_sampler(llm), exact_outputs(target), **STATED, seconds=SECONDS, at_once=256
    )
    counters = {m.name: getattr(m, "value", None) for m in llm.get_metrics()}
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    runner = type(worker.model_runner)
    verdict = found._asdict() | {
        "drafts": counters["vllm:spec_decode_num_draft_tokens"],
        "accepted": counters["vllm:spec_decode_num_accepted_tokens"],
        "runner": f"{runner.__module__}.{runner.__name__}",
    }
    llm.llm_engine.engine_core.shutdown()
    (folder / "verdict.json").write_text(json.dumps(verdict))
    sys.stdout.write(found.sentence + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
