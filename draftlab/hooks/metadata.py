"""What vLLM's objects say of a run and of a request: read by name, nothing imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab import provenance
from draftlab.hooks.join import Arrival
from draftlab.hooks.plan import SPECULATORS, Facts, Speculator, plan_columns
from draftlab.hooks.settings import external_id, find_workload, split_id
from draftlab.schema import Excluded

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.hooks.settings import HookSettings

WARMUP_PREFIXES = ("_warmup_", "_v2_mixed_warmup")
WARMUP_DATASET = "warmup"

_TRANSFORMS: dict[str, Callable[[Any], bool]] = {
    "presence_penalty": lambda p: p.presence_penalty != 0,
    "frequency_penalty": lambda p: p.frequency_penalty != 0,
    "repetition_penalty": lambda p: p.repetition_penalty != 1,
    "bad_words": lambda p: bool(p.bad_words),
    "allowed_tokens": lambda p: p.allowed_token_ids is not None,
    "logit_bias": lambda p: bool(p.logit_bias),
    "min_tokens": lambda p: p.min_tokens > 0,
    "thinking_budget": lambda p: p.thinking_token_budget is not None,
}
"""What acts on the target's distribution only: the drafter never sees it."""
_GRAMMAR = "grammar"


def read_facts(speculator: Any, vllm_config: Any, settings: HookSettings) -> Facts:
    """Return what decides on the columns, from a speculator that has loaded its model."""
    config = vllm_config.speculative_config
    logits = getattr(speculator, "draft_logits", None)
    estimator = getattr(speculator, "acceptance_estimator", None)
    name = type(speculator).__name__
    written = logits is not None and SPECULATORS.get(name, Speculator()).logits
    facts = Facts(
        speculator=name,
        drafting="probabilistic" if written else "greedy",
        adaptive=bool(getattr(config, "enable_adaptive_verification", False)),
        confidence_head=bool(getattr(speculator, "use_confidence_head", False)),
        fused=hasattr(getattr(speculator, "model", None), "sample_sequential"),
        local_argmax=bool(getattr(speculator, "use_local_argmax_reduction", False)),
        shadow=estimator is not None,
        tokens=settings.tokens,
        target=settings.target,
    )
    assert estimator is not None or not facts.has_estimator, "the expected estimator is missing"
    return facts


def describe_run(
    speculator: Any, vllm_config: Any, device: Any, facts: Facts, settings: HookSettings
) -> dict[str, Any]:
    """Return the keys of run.json."""
    config = vllm_config.speculative_config
    parallel = vllm_config.parallel_config
    drafter = getattr(config, "draft_model_config", None)
    return {
        "deployment": settings.deployment or getattr(vllm_config, "instance_id", None) or None,
        "engine": f"vllm {_version()}",
        "target": vllm_config.model_config.model,
        "drafter": config.method if drafter is None else drafter.model,
        "method": config.method,
        "drafting": facts.drafting,
        "verification": config.rejection_sample_method,
        "num_speculative_tokens": config.num_speculative_tokens,
        "feature_source": facts.source,
        "adaptive_verification": "vllm" if facts.adaptive else "off",
        "estimator_start": read_estimator(speculator) if facts.has_estimator else None,
        "vocab_size": vllm_config.model_config.get_vocab_size(),
        "device": _device_name(device),
        "dtype": str(vllm_config.model_config.dtype).removeprefix("torch."),
        "columns": plan_columns(facts),
        "speculator": facts.speculator,
        "replica": parallel.data_parallel_rank,
        "provenance": provenance.collect(packages=("torch", "triton", "transformers"))
        # Not the whole command: a server is started with keys in its arguments.
        | {"command": Path(sys.argv[0]).name, "seed": vllm_config.model_config.seed},
    }


def read_estimator(speculator: Any) -> dict[str, Any]:
    """Return the state of vLLM's estimator from which a replay starts.

    Waits for the device; called once, while models are loaded.
    """
    estimator = speculator.acceptance_estimator
    state = {
        name: getattr(estimator, name).tolist() for name in ("intercepts", "info", "grad", "counts")
    }
    return {
        "slope": float(estimator.slope.item()),
        **state,
        "steps_since_refit": getattr(estimator, "_steps_since_refit", 0),
        "refit_interval": estimator.REFIT_INTERVAL,
        "damping": estimator.DAMPING_OBSERVATIONS,
        "ridge": estimator.L2,
    }


def describe_request(
    new: Any,
    *,
    request: int,
    slot: int,
    max_model_len: int,
    verification: str,
    watermarked: bool,
    settings: HookSettings,
) -> tuple[Arrival, dict[str, Any], list[int] | None]:
    """Return a scheduled request as the joiner and the log want it.

    Returns
    -------
    arrival, row, prompt
        Columns of `requests`; the prompt is None where the id names the group.
    """
    params = new.sampling_params
    transforms = list_transforms(params, watermarked=watermarked)
    warmup = new.req_id.startswith(WARMUP_PREFIXES)
    prompt_length = new.prompt_len
    arrival = Arrival(
        request=request,
        slot=slot,
        excluded=_bits(transforms, warmup=warmup, verification=verification),
        emitted=len(new.prefill_token_ids) - prompt_length,
        prompt_tokens=prompt_length,
        max_output=min(params.max_tokens or max_model_len, max_model_len - prompt_length),
        min_output=params.min_tokens,
        stop_tokens=_stop_tokens(params),
    )
    external = external_id(new.req_id)
    dataset = WARMUP_DATASET if warmup else find_workload(external, settings)
    group = split_id(external)[1]
    row: dict[str, Any] = {
        "external_id": external if settings.raw_ids else settings.hash(external),
        "group": f"{dataset}/{_group(group, request, settings)}",
        "dataset": dataset,
        "temperature": params.temperature,
        "top_p": params.top_p if params.top_p < 1 else None,
        "top_k": params.top_k if params.top_k > 0 else None,
        "min_p": params.min_p if params.min_p > 0 else None,
        "seed": params.seed,
        "transforms": ",".join(transforms) or None,
        "prompt_tokens": prompt_length,
    }
    return arrival, row, new.prompt_token_ids if group is None else None


def list_transforms(params: Any, *, watermarked: bool = False) -> list[str]:
    """Return the names of a request's transforms that act on the target only."""
    names = [name for name, used in _TRANSFORMS.items() if _ask(used, params)]
    if getattr(params, "structured_outputs", None) is not None:
        names.append(_GRAMMAR)
    if watermarked and getattr(params, "watermarking", None) is not False:
        names.append("watermark")
    return names


def _ask(used: Callable[[Any], bool], params: Any) -> bool:
    try:
        return used(params)
    except AttributeError:  # a version without this parameter
        return False


def _bits(transforms: list[str], *, warmup: bool, verification: str) -> int:
    bits = Excluded.WARMUP if warmup else Excluded(0)
    if _GRAMMAR in transforms:
        bits |= Excluded.GRAMMAR
    if any(name != _GRAMMAR for name in transforms):
        bits |= Excluded.TARGET_ONLY_TRANSFORM
    if verification != "standard":
        bits |= Excluded.FOREIGN_METHOD
    return int(bits)


def _stop_tokens(params: Any) -> tuple[int, ...]:
    end = getattr(params, "eos_token_id", None)
    return (*(params.stop_token_ids or ()), *(() if end is None else (end,)))


def _group(group: str | None, request: int, settings: HookSettings) -> str:
    if group is None:
        return f"request-{request}"
    return group if settings.raw_ids else settings.hash(group)


def _version() -> str:
    return str(getattr(sys.modules.get("vllm"), "__version__", "unknown"))


def _device_name(device: Any) -> str:
    if device.type != "cuda":
        return str(device.type)
    import torch

    return str(torch.cuda.get_device_name(device))
