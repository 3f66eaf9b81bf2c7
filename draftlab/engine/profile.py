"""Measure what a step of the reference engine costs here, by requests and verified drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from draftlab.engine.collect import CollectSettings, load_engine
from draftlab.engine.decode import Request, SpeculativeDecoder
from draftlab.engine.drafters import Drafter, LayerSkipDrafter, ModelDrafter
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab.engine.collect import Engine
    from draftlab.engine.decode import Columns
    from draftlab.engine.model import KeyValueCache

MEASURED_CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
"""Requests in a step that are measured unless told."""
REPETITIONS = 5
"""Steps per size, of which the median counts, as in vLLM."""
CONTEXT_TOKENS = 128
"""Prompt of every request; contexts grow a little while measuring."""
_WARM_UP = 2


@dataclass
class SameLength:
    """Admits the same number of drafts of every request."""

    length: int = 0
    lengths: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    reason: str = "profile"

    @property
    def budget(self) -> int:
        """Drafts admitted in the step."""
        return int(self.lengths.sum())

    def admit(self, columns: Columns, **_sizes: int) -> SameLength:
        """Return the length of every pending proposal."""
        self.lengths = np.full(int(np.sum(columns["position"] == 0)), self.length)
        return self

    def learn(self, _columns: Columns | None) -> None:
        """Do nothing."""

    def predict(self, _columns: Columns) -> Columns:
        """Add nothing."""
        return {}


def profile(
    settings: CollectSettings | None = None,
    *,
    concurrencies: Sequence[int] = MEASURED_CONCURRENCIES,
    repetitions: int = REPETITIONS,
    context_tokens: int = CONTEXT_TOKENS,
    on_step: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Time steps of the engine with 0..K drafts verified of every request.

    Parameters
    ----------
    settings : CollectSettings, optional
        Models, sampling, K, seed and device; its prompts and concurrency are not read.
    concurrencies : sequence of int
        Requests in a step.
    repetitions : int
        Steps measured per size.
    context_tokens : int
        Random tokens that stand before.
    on_step
        Called with the steps done and their total.

    Returns
    -------
    dict of str to (n,) arrays
        ``requests``, ``tokens`` (int64, padding included: rows are as wide as the longest),
        ``verify_ms`` and ``draft_ms`` (float64), one entry a step; what `StepSizes` takes.

    Raises
    ------
    InputError
        A setting or checkpoint is unusable.
    """
    settings = settings or CollectSettings()
    settings.check()
    if not concurrencies or min(concurrencies) < 1 or repetitions < 1 or context_tokens < 2:
        raise InputError(
            "wanted concurrencies and repetitions of at least 1 and a context of at least 2 "
            f"tokens, got {list(concurrencies)}, {repetitions} and {context_tokens}"
        )
    return measure(
        load_engine(settings), settings, concurrencies, repetitions, context_tokens, on_step
    )


def measure(
    engine: Engine,
    settings: CollectSettings,
    concurrencies: Sequence[int],
    repetitions: int,
    context_tokens: int,
    on_step: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Time a loaded engine; see `profile`."""
    K = settings.num_speculative_tokens
    steps = _WARM_UP + (K + 1) * repetitions
    total = steps * len(concurrencies)
    rows: list[tuple[int, int, float, float]] = []
    for turn, requests in enumerate(concurrencies):
        # a step emits at most K + 1 tokens a request; nobody may finish while measuring
        room = (steps + 1) * (K + 1) + 1
        admission = SameLength()
        decoder = _decoder(engine, settings, requests, context_tokens + room + K, admission)
        prompts = iter(_requests(engine, settings, requests, context_tokens, room))
        decoder.step(lambda prompts=prompts: next(prompts, None))  # type: ignore[misc]
        # sizes take turns, so that a slow moment of the machine does not fall on one of them
        for index in range(steps):
            admission.length = index % (K + 1)
            row = decoder.step(lambda: None).row
            if index >= _WARM_UP:
                tokens = requests * (admission.length + 1)
                rows.append((requests, tokens, row["verify_ms"], row["draft_ms"]))
            on_step(turn * steps + index + 1, total)
    sizes, tokens_read, verify_ms, draft_ms = (np.array(c) for c in zip(*rows, strict=True))
    return {
        "requests": sizes,
        "tokens": tokens_read,
        "verify_ms": verify_ms.astype(np.float64),
        "draft_ms": draft_ms.astype(np.float64),
    }


def _decoder(
    engine: Engine, settings: CollectSettings, slots: int, length: int, admission: SameLength
) -> SpeculativeDecoder:
    cache = engine.target.new_cache(slots, length)
    return SpeculativeDecoder(
        engine.target,
        cache,
        _drafter(engine, cache, slots),
        num_speculative_tokens=settings.num_speculative_tokens,
        greedy_drafting=settings.draft_sample_method == "greedy",
        seed=settings.seed,
        head=engine.head,
        admission=admission,
    )


def _drafter(engine: Engine, cache: KeyValueCache, slots: int) -> Drafter:
    if engine.drafter is None:
        return LayerSkipDrafter(engine.target, cache, engine.skip_layers)
    return ModelDrafter(engine.drafter, engine.drafter.new_cache(slots, cache.length))


def _requests(
    engine: Engine, settings: CollectSettings, count: int, context_tokens: int, room: int
) -> list[Request]:
    rng = np.random.default_rng(settings.seed)
    prompts = rng.integers(0, engine.target.config.vocab_size, (count, context_tokens))
    return [
        Request(
            number,
            tuple(prompt),
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            max_new_tokens=room,
        )
        for number, prompt in enumerate(prompts.tolist())
    ]
