"""Log the drafts of a live vLLM server (Model Runner V2) without touching its source.

`register` is an entry point of group ``vllm.general_plugins``. vLLM calls it in every process,
perhaps twice; it is inert unless DRAFTLAB_LOG is set, and acts only where a speculator is built:
in the worker, on the last pipeline rank, where one tensor-parallel rank logs. It wraps
`init_speculator`, then `propose` and `observe_verification` on the instance, so that nothing
runs inside a captured CUDA graph and nothing waits for the device. Any error switches the hook
off; vLLM goes on with the same tokens.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import itertools
import logging
import os
import secrets
import sys
import time
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from draftlab.hooks.settings import LOG_VARIABLE, LOGGER, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from draftlab.hooks.settings import HookSettings

logger = logging.getLogger(LOGGER)

SPEC_DECODE = "vllm.v1.worker.gpu.spec_decode"
MODEL_RUNNER = "vllm.v1.worker.gpu.model_runner"
SPECULATOR_NAMES = ("propose", "observe_verification")
RUNNER_NAMES = ("add_requests", "finish_requests")
"""Names without which the hook cannot work; it looks for them and otherwise stays off."""

_INTEGER_STEPS = 256
"""Verdicts that may wait for the log: they are small, and a lost one spoils the joins."""
_FLOAT_STEPS = 32
_MARK = "_draftlab"
_HOOK = "_draftlab_hook"


def register() -> None:
    """Arm the hook: the entry point that vLLM calls."""
    if not os.environ.get(LOG_VARIABLE):
        return
    try:
        _wrap_init_speculator()
    except Exception as error:
        logger.warning("draftlab logs no drafts: this vLLM is not known to it: %r", error)


def _wrap_init_speculator() -> None:
    module: Any = importlib.import_module(SPEC_DECODE)
    original = module.init_speculator
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def init_speculator(*args: Any, **kwargs: Any) -> Any:
        speculator = original(*args, **kwargs)
        try:
            _attach(speculator, *args, **kwargs)
        except Exception as error:
            logger.warning("draftlab logs no drafts, vLLM goes on: %r", error)
        return speculator

    setattr(init_speculator, _MARK, True)
    module.init_speculator = init_speculator
    runner: Any = sys.modules.get(MODEL_RUNNER)  # imported the name before us
    if runner is not None and getattr(runner, "init_speculator", None) is original:
        runner.init_speculator = init_speculator


def _attach(speculator: Any, vllm_config: Any, device: Any, req_states: Any) -> None:
    """Put the hook on a speculator, and on the runner class that will drive it."""
    from draftlab.hooks.plan import SPECULATORS

    kind = SPECULATORS.get(type(speculator).__name__)
    if kind is not None and not kind.verdicts:
        logger.warning("draftlab logs no drafts: %s", kind.remark)
        return
    runner_class = sys.modules[MODEL_RUNNER].GPUModelRunner
    missing = [name for name in SPECULATOR_NAMES if not hasattr(speculator, name)]
    missing += [name for name in RUNNER_NAMES if not hasattr(runner_class, name)]
    if missing:
        logger.warning("draftlab logs no drafts: this vLLM lacks %s", ", ".join(missing))
        return
    settings = read_settings(os.environ, salt=secrets.token_hex(16))
    _set_shadow(speculator, settings)
    if not _is_logging_rank():
        return
    hook = VllmHook(speculator, vllm_config, device, req_states, settings)
    setattr(req_states, _HOOK, hook)
    _wrap_runner(runner_class)
    hook.wrap_speculator()
    atexit.register(hook.close)
    util.Finalize(hook, hook.close, exitpriority=100)  # a forked worker never runs atexit


def _set_shadow(speculator: Any, settings: HookSettings) -> None:
    """Let vLLM's estimator run without trimming, on every rank alike."""
    from draftlab.hooks.plan import SPECULATORS, Speculator

    possible = SPECULATORS.get(type(speculator).__name__, Speculator()).shadow
    # With the reduction vLLM refuses to build an estimator, as no logits exist.
    if getattr(speculator, "use_local_argmax_reduction", False) or not possible:
        return
    if settings.shadow and hasattr(speculator, "use_acceptance_estimator"):
        speculator.use_acceptance_estimator = True


def _is_logging_rank() -> bool:
    state: Any = importlib.import_module("vllm.distributed.parallel_state")
    groups = ("get_tp_group", "get_pcp_group")
    return all(getattr(state, g)().rank_in_group == 0 for g in groups if hasattr(state, g))


def _wrap_runner(runner_class: Any) -> None:
    """Wrap the runner's methods once; a runner without a hook passes through."""
    if getattr(runner_class.add_requests, _MARK, False):
        return
    _wrap_method(runner_class, "add_requests", after=VllmHook.on_add)
    _wrap_method(runner_class, "finish_requests", before=VllmHook.on_finish)
    if hasattr(runner_class, "shutdown"):
        _wrap_method(runner_class, "shutdown", before=VllmHook.on_shutdown)


def _wrap_method(
    owner: Any,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook = getattr(getattr(self, "req_states", None), _HOOK, None)
        if hook is not None and before is not None:
            hook.guard(before, self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        if hook is not None and after is not None:
            hook.guard(after, self, *args, **kwargs)
        return result

    setattr(method, _MARK, True)
    setattr(owner, name, method)


class VllmHook:
    """The hook of one engine replica: turns what vLLM's worker does into events of a recorder."""

    def __init__(
        self,
        speculator: Any,
        vllm_config: Any,
        device: Any,
        req_states: Any,
        settings: HookSettings,
    ) -> None:
        self.active = True
        self.settings = settings
        self.speculator = speculator
        self.vllm_config = vllm_config
        self.device = device
        self.req_states = req_states
        self.K: int = vllm_config.speculative_config.num_speculative_tokens
        self.recorder: Any = None
        self._step = -1
        self._verdict: tuple[Any, Any, Any, int] | None = None
        self._keys: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._stop_strings: set[str] = set()
        self._next_key = itertools.count()
        self._target: Any = None

    # -- wrapping ---------------------------------------------------------------------------

    def wrap_speculator(self) -> None:
        """Shadow the instance's methods; the class and every other instance stay as they are."""
        speculator = self.speculator
        propose, observe = speculator.propose, speculator.observe_verification
        load = getattr(speculator, "load_model", None)

        @functools.wraps(propose)
        def hooked_propose(*args: Any, **kwargs: Any) -> Any:
            started = self.guard(VllmHook.start_timer)
            drafts = propose(*args, **kwargs)
            self.guard(VllmHook.on_propose, args, kwargs, drafts, started)
            return drafts

        @functools.wraps(observe)
        def hooked_observe(*args: Any, **kwargs: Any) -> Any:
            self.guard(VllmHook.on_verdict, *args, **kwargs)
            return observe(*args, **kwargs)

        speculator.propose = hooked_propose
        speculator.observe_verification = hooked_observe
        if load is not None:

            @functools.wraps(load)
            def hooked_load(*args: Any, **kwargs: Any) -> Any:
                result = load(*args, **kwargs)
                self.guard(VllmHook.start)
                return result

            speculator.load_model = hooked_load

    def guard(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a part of the hook; any error switches the hook off and stays here."""
        if not self.active:
            return None
        try:
            return action(self, *args, **kwargs)
        except Exception as error:
            self.switch_off(action, error)
            return None

    def switch_off(self, action: Callable[..., Any], error: Exception) -> None:
        """Log an error once and let vLLM go on alone."""
        self.active = False
        name = getattr(action, "__name__", "hook")
        logger.warning("draftlab stops logging drafts (%s), vLLM goes on: %r", name, error)
        if self.recorder is not None:
            self.recorder.stop()

    def close(self) -> None:
        """Finish the run on the disk. Safe to call twice."""
        self.active = False
        if self.recorder is not None:
            self.recorder.close()

    # -- what vLLM does ---------------------------------------------------------------------

    def start(self) -> None:
        """Open the run: models are loaded, the estimator holds its start state."""
        if self.recorder is not None:
            return
        import torch

        from draftlab.hooks.device_copies import PinnedRing
        from draftlab.hooks.metadata import describe_run, read_facts
        from draftlab.hooks.plan import FLOATS, place_floats
        from draftlab.hooks.recorder import Recorder

        facts = read_facts(self.speculator, self.vllm_config, self.settings)
        num_slots: int = self.req_states.max_num_reqs
        self._facts = facts
        self._places = place_floats(facts)
        self._names = tuple(name for group in self._places for name in FLOATS[group])
        integers = (num_slots, 4 + self.K)
        self._integers = PinnedRing(_INTEGER_STEPS, integers, torch.int32, self.device)
        floats = (num_slots, self.K, len(self._names))
        self._floats = PinnedRing(_FLOAT_STEPS, floats, torch.float32, self.device)
        self.recorder = Recorder(
            self.settings,
            describe_run(self.speculator, self.vllm_config, self.device, facts, self.settings),
            num_slots,
            self.K,
        )
        logger.info("draftlab logs drafts to %s", self.settings.log)

    def on_add(self, runner: Any, scheduler_output: Any) -> None:
        """Take note of requests that entered a slot."""
        self.start()
        if self.settings.target and self._target is None:
            self._wrap_rejection_sampler(runner)
        for new in scheduler_output.scheduled_new_reqs:
            if new.sampling_params is not None:
                self._add(new)

    def _add(self, new: Any) -> None:
        from draftlab.hooks.metadata import describe_request
        from draftlab.hooks.recorder import EndEvent, RequestEvent

        slot = self.req_states.req_id_to_index[new.req_id]
        old = self._slots.get(new.req_id)
        if old is not None and old != slot:  # an input that is streamed in comes again
            self.recorder.put(EndEvent(finished=(), preempted=(old,)))
        first = new.req_id not in self._keys
        key = next(self._next_key) if first else self._keys[new.req_id]
        self._keys[new.req_id], self._slots[new.req_id] = key, slot
        if new.sampling_params.stop:
            self._stop_strings.add(new.req_id)
        arrival, row, prompt = describe_request(
            new,
            request=key,
            slot=slot,
            max_model_len=self.req_states.max_model_len,
            verification=self.vllm_config.speculative_config.rejection_sample_method,
            watermarked=getattr(self.vllm_config, "watermark_config", None) is not None,
            settings=self.settings,
        )
        self.recorder.put(RequestEvent(arrival, row, prompt, new=first))

    def on_finish(self, runner: Any, scheduler_output: Any) -> None:  # noqa: ARG002
        """Take note of requests that are about to leave their slots."""
        preempted = scheduler_output.preempted_req_ids or ()
        if not (scheduler_output.finished_req_ids or preempted) or self.recorder is None:
            return
        from draftlab.hooks.recorder import EndEvent

        finished = []
        for name in sorted(scheduler_output.finished_req_ids):
            key = self._keys.pop(name, None)
            if key is not None:
                slot = self._slots.pop(name, None)
                finished.append((slot, key, name in self._stop_strings))
                self._stop_strings.discard(name)
        slots = [self._slots.pop(name) for name in sorted(preempted) if name in self._slots]
        self.recorder.put(EndEvent(tuple(finished), tuple(slots)))

    def on_shutdown(self, runner: Any) -> None:  # noqa: ARG002
        """Finish the run while the device still answers."""
        self.close()

    def on_verdict(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        """Count the step and keep the verdict until the proposal of the same step is made."""
        self.start()
        if self._verdict is not None:
            self._put_step(None, None)
        self._step += 1
        self._verdict = (idx_mapping, num_sampled, num_rejected, time.time_ns() // 1_000_000)

    def start_timer(self) -> Callable[[], Callable[[], float]] | None:
        """Start timing a proposal; the result ends it, and what that returns reads it, in ms."""
        if self._verdict is None:  # a dummy run, perhaps while a graph is captured
            return None
        if self.device.type != "cuda":
            started = time.perf_counter()

            def stop() -> Callable[[], float]:
                spent = 1e3 * (time.perf_counter() - started)
                return lambda: spent

            return stop
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()

        def stop_events() -> Callable[[], float]:
            end.record()
            return lambda: float(begin.elapsed_time(end))

        return stop_events

    def on_propose(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        drafts: Any,
        stop_timer: Callable[[], Callable[[], float]] | None,
    ) -> None:
        """Copy what the step brought, verdict and proposal, towards the log."""
        arguments = _arguments(type(self.speculator).propose, args, kwargs)
        if arguments.get("dummy_run") or self._verdict is None:
            return
        draft_ms = stop_timer() if stop_timer is not None else None
        self._put_step(arguments, drafts, draft_ms)
        if not self.recorder.alive:
            self.active = False

    # -- copying ----------------------------------------------------------------------------

    def _put_step(
        self,
        arguments: dict[str, Any] | None,
        drafts: Any,
        draft_ms: Callable[[], float] | None = None,
    ) -> None:
        from draftlab.hooks.recorder import StepEvent

        assert self._verdict is not None
        idx_mapping, _, _, unix_ms = self._verdict
        row = {"step": self._step, "unix_ms": unix_ms, "num_requests": len(idx_mapping)}
        slots = scheduled = offered = floats = None
        integers = self._copy_integers(arguments, drafts)
        if arguments is not None:
            batch = arguments["input_batch"]
            offered = arguments.get("num_speculative_tokens")
            offered = self.K if offered is None else min(offered, self.K)
            row |= self._describe_batch(batch) | {"offered_k": offered}
            slots = batch.idx_mapping_np.copy()
            scheduled = _scheduled_drafts(batch)
            floats = self._copy_floats(idx_mapping, drafts)
        self._verdict = None
        self.recorder.put(
            StepEvent(
                step=self._step,
                row=row,
                slots=slots,
                num_scheduled=scheduled,
                offered=offered,
                integers=integers,
                floats=floats,
                float_names=self._names,
                draft_ms=draft_ms,
            )
        )

    def _describe_batch(self, batch: Any) -> dict[str, Any]:
        # Counts per request are those before trimming, num_draft_tokens is what was left of them.
        drafts = int(_scheduled_drafts(batch).sum())
        row: dict[str, Any] = {
            "num_non_draft_tokens": int(batch.num_scheduled_tokens.sum()) - drafts,
            "padded_tokens": int(batch.num_tokens_after_padding),
        }
        if self._facts.adaptive:
            budget = int(batch.num_draft_tokens)
            row["budget"] = budget
            row["budget_reason"] = "all" if budget >= drafts else "cost"
        return row

    def _copy_integers(self, arguments: dict[str, Any] | None, drafts: Any) -> Any:
        import torch

        assert self._verdict is not None
        idx_mapping, num_sampled, num_rejected, _ = self._verdict
        values = torch.full(
            (len(idx_mapping), 4 + self.K), -1, dtype=torch.int32, device=self.device
        )
        values[:, 0] = idx_mapping
        values[:, 1] = num_sampled
        values[:, 2] = num_rejected
        if arguments is not None:
            values[:, 3] = arguments["last_sampled"].flatten()[idx_mapping]
            values[:, 4 : 4 + drafts.shape[1]] = drafts[: len(idx_mapping)]
        return self._integers.copy(values)

    def _copy_floats(self, slots: Any, drafts: Any) -> Any:
        import torch

        from draftlab.hooks.draft_columns import draft_features

        speculator, places = self.speculator, self._places
        shape = (len(slots), self.K, len(self._names))
        values = torch.full(shape, torch.nan, dtype=torch.float32, device=self.device)
        if "logits" in places:
            tokens, out = drafts[: len(slots)].contiguous(), values[..., places["logits"]]
            draft_features(speculator.draft_logits, slots, speculator.temperature, tokens, out)
        if "live" in places:
            live, estimator = values[..., places["live"]], speculator.acceptance_estimator
            live[..., 0] = estimator.features[slots]
            live[..., 1] = estimator.predictions[slots]
        if "confidence" in places:
            probability = speculator.draft_token_confidence_probs[: len(slots)]
            values[..., places["confidence"]] = torch.logit(probability)[..., None]
        if self._target is not None:
            values[..., places["target"]] = self._target[slots]
            self._target.fill_(torch.nan)
        return self._floats.copy(values)

    # -- the target's side ------------------------------------------------------------------

    def _wrap_rejection_sampler(self, runner: Any) -> None:
        """Read p behind the target's transforms, where the rejection sampler has it."""
        import torch

        sampler = runner.rejection_sampler
        verify = sampler._verify
        slots = self.req_states.max_num_reqs + 1  # the last one takes what belongs nowhere
        self._target = torch.full((slots, self.K, 2), torch.nan, device=self.device)

        @functools.wraps(verify)
        def hooked_verify(*args: Any, **kwargs: Any) -> Any:
            result = verify(*args, **kwargs)
            arguments = _arguments(type(sampler)._verify, args, kwargs)
            self.guard(VllmHook.on_verify, arguments, result[0])
            return result

        sampler._verify = hooked_verify

    def on_verify(self, arguments: dict[str, Any], target_logits: Any) -> None:
        """Compare p and q of the drafts that one call of the rejection sampler judges."""
        from draftlab.hooks.target_columns import judged_rows, target_columns

        tokens, slots, positions = judged_rows(
            arguments["verify_draft_sampled"],
            arguments["expanded_idx_mapping"],
            arguments["expanded_local_pos"],
        )
        target_columns(
            target_logits[:-1],
            arguments["draft_logits"],
            tokens,
            slots,
            positions,
            self.speculator.temperature,
            self._target,
        )


@functools.lru_cache(maxsize=64)
def _parameter_names(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return a bound method's arguments by name, given the function in its class."""
    return dict(zip(_parameter_names(function)[1:], args, strict=False)) | kwargs


def _scheduled_drafts(batch: Any) -> Any:
    """Return how many drafts the scheduler sent along for each request."""
    import numpy as np

    given = batch.num_draft_tokens_per_req
    return np.zeros(len(batch.req_ids), dtype=np.int64) if given is None else given.copy()
