"""Cost tables: what a step costs, as data, with the rule by which it is looked up.

A step takes fixed + batch[requests] + verify[tokens] + draft[requests] milliseconds. Engines
differ in how they read between the measured points (the rule of each curve) and in which part
a number includes; both stand in the table.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from draftlab.errors import InputError
from draftlab.policies.budget import choose_budget, is_flat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from draftlab._types import FloatArray

Rule = Literal["stairs", "linear", "clamped", "floor"]
RULES: dict[str, str] = {
    "stairs": "the next point up to the capture limit, linear above it (vLLM)",
    "linear": "linear between the points, the last slope beyond them",
    "clamped": "linear between the points, constant beyond them (TensorRT-LLM, SGLang additive)",
    "floor": "the point below (SGLang)",
}
Source = Literal["measured", "model", "imported"]
FORMAT = "draftlab-cost/1"
REPETITIONS = 5
"""Measurements per size, of which vLLM takes the median."""


@dataclass(frozen=True)
class Curve:
    """Milliseconds at some sizes, and how to read between them.

    Examples
    --------
    >>> stairs = Curve((8, 16, 32), (1.0, 2.0, 4.0), "stairs", capture_limit=16)
    >>> stairs.at([1, 8, 9, 24, 40]).tolist()
    [1.0, 1.0, 2.0, 3.0, 5.0]
    """

    sizes: tuple[int, ...]
    """Rising: tokens, or requests."""
    ms: tuple[float, ...]
    rule: Rule = "linear"
    capture_limit: int | None = None
    """Largest size with a captured graph (stairs only); None: the last point."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"unknown look-up rule {self.rule!r}; known: {', '.join(RULES)}")
        if not self.sizes or len(self.sizes) != len(self.ms):
            raise InputError(
                f"a cost curve needs as many times as sizes, at least one; got {len(self.sizes)} "
                f"sizes and {len(self.ms)} times"
            )
        if any(b <= a for a, b in pairwise(self.sizes)):
            raise InputError(f"sizes of a cost curve must rise, got {list(self.sizes)}")
        if not all(np.isfinite(t) and t >= 0 for t in self.ms):
            raise InputError(f"times of a cost curve must be finite and >= 0, got {list(self.ms)}")

    def at(self, size: npt.ArrayLike) -> FloatArray:
        """Return ms at sizes of any shape."""
        wanted = np.asarray(size, dtype=np.float64)
        xs = np.asarray(self.sizes, dtype=np.float64)
        ys = np.asarray(self.ms, dtype=np.float64)
        if self.rule == "floor":
            return ys[np.clip(np.searchsorted(xs, wanted, side="right") - 1, 0, len(xs) - 1)]
        if self.rule == "clamped":
            return np.asarray(np.interp(wanted, xs, ys))
        linear = _straight(wanted, xs, ys)
        if self.rule == "linear":
            return linear
        limit = self.sizes[-1] if self.capture_limit is None else self.capture_limit
        index = np.searchsorted(xs, wanted, side="left")
        step = ys[np.minimum(index, len(xs) - 1)]
        captured = (index < len(xs)) & (xs[np.minimum(index, len(xs) - 1)] <= limit)
        return np.where(captured, step, linear)

    def scaled(self, factor: float) -> Curve:
        """Return the curve times a factor."""
        return replace(self, ms=tuple(factor * t for t in self.ms))


def _straight(wanted: FloatArray, xs: FloatArray, ys: FloatArray) -> FloatArray:
    """Interpolate; beyond the last point go on along the last two, below the first stay."""
    if len(xs) == 1:
        return np.full(wanted.shape, ys[0])
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    beyond = ys[-1] + slope * (wanted - xs[-1])
    return np.where(wanted > xs[-1], beyond, np.interp(wanted, xs, ys))


ZERO = Curve((1,), (0.0,))


@dataclass(frozen=True)
class CostTable:
    """Time of an engine step by its size.

    Examples
    --------
    >>> table = CostTable("toy", "model", verify=Curve((1, 3), (10.0, 12.0)))
    >>> table.step_ms(1, [1, 2, 3]).tolist()
    [10.0, 11.0, 12.0]
    """

    name: str
    source: Source
    """``model`` numbers are computed, not measured, and are called so wherever they show."""
    verify: Curve
    """By tokens in the target's batch, the last emitted token of each request included."""
    draft: Curve = ZERO
    """By requests: drafting all K tokens."""
    batch: Curve = ZERO
    """By requests: what verification costs besides its tokens."""
    fixed_ms: float = 0.0
    draft_passes: int | None = None
    """Passes that the drafter makes one after the other for K tokens, if they can be saved;
    None: one pass drafts all (parallel drafters), so that stopping early saves nothing."""
    note: str = ""

    def step_ms(
        self, requests: npt.ArrayLike, tokens: npt.ArrayLike, passes: npt.ArrayLike | None = None
    ) -> FloatArray:
        """Return the time of a step, ms.

        Parameters
        ----------
        requests, tokens : int or arrays that broadcast
            Requests in the step, tokens that the target reads.
        passes : optional
            Draft passes made; all unless told, 0 is no drafting.
        """
        verify = self.fixed_ms + self.batch.at(requests) + self.verify.at(tokens)
        return np.asarray(verify + self.draft.at(requests) * self._share(passes))

    def _share(self, passes: npt.ArrayLike | None) -> FloatArray:
        """Return the share of the drafting time that so many passes take."""
        if passes is None:
            return np.asarray(1.0)
        made = np.asarray(passes, dtype=np.float64)
        if self.draft_passes is None:
            return np.where(made > 0, 1.0, 0.0)
        return made / self.draft_passes

    def to_dict(self) -> dict[str, Any]:
        """Return JSON content."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, path: str | Path) -> Path:
        """Write JSON; return the path."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        return Path(path)


USELESS: dict[str, str] = {
    "flat_table": "the cost table is flat",
    "one_size_table": "the cost table is flat (only one batch size was measured)",
    "inert_table": "the cost table always favours the same budget",
}
"""Why a cost table leaves nothing to decide, by code."""


class UselessTable(NamedTuple):
    """Why a cost table leaves nothing to decide at some load."""

    code: str
    """``flat_table``: the time does not depend on the drafts verified, so everything is verified;
    ``one_size_table``: neither, but only one size was measured. ``inert_table``: it does, but
    whatever the drafts are worth (conditional acceptance 0.05 to 0.95) the best budget is the
    same."""
    fact: str
    consequence: str

    @property
    def finding(self) -> str:
        """The kind and the fact."""
        return f"{USELESS[self.code]}: {self.fact}"

    def __str__(self) -> str:
        """Return the whole sentence."""
        return f"{self.finding}, so {self.consequence}"


def check_table(
    table: CostTable, *, requests: int, num_speculative_tokens: int
) -> UselessTable | None:
    """Return why a table leaves nothing to decide at this load, else None.

    Examples
    --------
    >>> toy = CostTable("toy", "model", verify=Curve((1,), (10.0,)))
    >>> print(check_table(toy, requests=4, num_speculative_tokens=5))
    the cost table is flat (only one batch size was measured): a step costs the same with 0 and with
    20 drafts at 4 requests, so everything is verified
    """
    K = num_speculative_tokens
    drafts = requests * K
    costs = table.step_ms(requests, requests + np.arange(drafts + 1))
    at = f"{drafts} drafts at {requests} request{'s' if requests > 1 else ''}"
    if is_flat(costs):
        return UselessTable(
            "flat_table" if len(table.verify.sizes) > 1 else "one_size_table",
            f"a step costs the same with 0 and with {at}",
            "everything is verified",
        )
    rates = np.linspace(0.05, 0.95, 19)
    survivals = np.repeat(rates[:, None] ** np.arange(1, K + 1), requests, axis=1)
    budgets = choose_budget(survivals, costs, num_sampling_requests=requests)
    if len(np.unique(budgets)) == 1:
        return UselessTable(
            "inert_table",
            f"of {at} the best budget is {budgets[0]}, however likely they are to be accepted",
            "no predictor can change it",
        )
    return None


def read_cost(source: str | Path | Mapping[str, Any]) -> CostTable:
    """Read a cost table: draftlab's own, SGLang's two forms, or TensorRT-LLM's.

    Forms are told apart by their keys. Of the foreign ones the drafting time is included in, or
    absent from, the numbers: ``draft`` is 0 then.

    Raises
    ------
    InputError
        Not JSON, of no known form, or with unusable numbers.
    """
    if isinstance(source, str | Path):
        try:
            content = json.loads(Path(source).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{source}: not a readable JSON cost table: {error}") from error
        name = Path(source).stem
    else:
        content, name = dict(source), "table"
    for key, reader in _READERS.items():
        if isinstance(content, dict) and key in content:
            try:
                return reader(content, name)
            except (KeyError, TypeError) as error:
                raise InputError(f"{name}: incomplete cost table ({key}): {error}") from error
    raise InputError(f"{name}: no cost table: wanted a key of {', '.join(_READERS)}")


def find_cost(name: str) -> CostTable:
    """Return a cost table by name: a roofline model HARDWARE/MODEL, or a file.

    Raises
    ------
    InputError
        Neither a known pair of `HARDWARE` and `MODELS` nor a readable file.
    """
    hardware, slash, model = name.partition("/")
    if slash and hardware in HARDWARE and model in MODELS:
        return roofline(HARDWARE[hardware], MODELS[model])
    if not Path(name).is_file():
        raise InputError(
            f"{name}: no such file, and no model HARDWARE/MODEL of {', '.join(HARDWARE)} and "
            f"{', '.join(MODELS)}"
        )
    return read_cost(name)


def _read_own(content: dict[str, Any], name: str) -> CostTable:
    if content["format"] != FORMAT:
        raise InputError(f"{name}: format {content['format']!r}, this draftlab reads {FORMAT!r}")
    fields = {key: value for key, value in content.items() if key != "format"}
    for key in ("verify", "draft", "batch"):
        raw = fields[key]
        fields[key] = Curve(
            tuple(raw["sizes"]), tuple(raw["ms"]), raw["rule"], raw["capture_limit"]
        )
    return CostTable(**fields)


def _read_sglang(content: dict[str, Any], name: str) -> CostTable:
    """Read sample_batch_tokens and sample_steps_per_sec, with a floor look-up."""
    sizes = content["sample_batch_tokens"]
    if len(sizes) < 2:
        raise InputError(f"{name}: a single probe means that the engine was not profiled")
    ms = [1e3 / rate for rate in content["sample_steps_per_sec"]]
    return CostTable(
        name, "imported", verify=Curve(tuple(sizes), tuple(ms), "floor"), note="SGLang floor table"
    )


def _read_sglang_additive(content: dict[str, Any], name: str) -> CostTable:
    """Read bias + alpha(batch size) + theta(tokens), clamped linear."""
    if len(content["m_probes"]) < 2:
        raise InputError(f"{name}: a single probe means that the engine was not profiled")
    return CostTable(
        name,
        "imported",
        verify=_milliseconds(content["m_probes"], content["theta_seconds"]),
        batch=_milliseconds(content["bs_probes"], content["alpha_seconds"]),
        fixed_ms=1e3 * content["bias_seconds"],
        note="SGLang additive table",
    )


def _milliseconds(sizes: Sequence[int], seconds: Sequence[float]) -> Curve:
    return Curve(tuple(sizes), tuple(1e3 * s for s in seconds), "clamped")


def _read_tensorrt(content: dict[str, Any], name: str) -> CostTable:
    """Read token_counts and step_time_ms, decomposed or not.

    In the decomposed form step_time_ms is the trimmable part only; taken for the whole step it
    would make every planner trim too much.
    """
    batch = ZERO
    if content.get("batch_sizes"):
        batch = Curve(tuple(content["batch_sizes"]), tuple(content["batch_overhead_ms"]), "clamped")
    decomposed = "fixed_overhead_ms" in content
    return CostTable(
        name,
        "imported",
        verify=Curve(tuple(content["token_counts"]), tuple(content["step_time_ms"]), "clamped"),
        batch=batch,
        fixed_ms=float(content.get("fixed_overhead_ms", 0.0)),
        note=f"TensorRT-LLM {'decomposed' if decomposed else 'whole-step'} table",
    )


_READERS = {
    "format": _read_own,
    "bias_seconds": _read_sglang_additive,
    "sample_batch_tokens": _read_sglang,
    "token_counts": _read_tensorrt,
}


def measured_curve(sizes: npt.ArrayLike, ms: npt.ArrayLike, *, rule: Rule = "linear") -> Curve:
    """Return a curve through the median of each size, made non-decreasing as vLLM does.

    Parameters
    ----------
    sizes : (n,) int
        Size of each measurement; sizes repeat.
    ms : (n,) float

    Examples
    --------
    >>> measured_curve([4, 4, 4, 8], [1.0, 9.0, 2.0, 1.5]).ms
    (2.0, 2.0)
    """
    measured = np.asarray(sizes, dtype=np.int64)
    times = np.asarray(ms, dtype=np.float64)
    distinct = np.unique(measured)
    medians = [float(np.median(times[measured == size])) for size in distinct]
    return Curve(tuple(distinct.tolist()), tuple(np.maximum.accumulate(medians).tolist()), rule)


@dataclass(frozen=True)
class Hardware:
    """Peak numbers of a device, from its data sheet."""

    name: str
    tflops: float
    """Dense, 16-bit."""
    bandwidth_tb: float
    """TB/s."""


HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        Hardware("A100-80GB", 312.0, 2.04),
        Hardware("H100", 989.0, 3.35),
        Hardware("H200", 989.0, 4.8),
        Hardware("B200", 2250.0, 8.0),
        Hardware("MI300X", 1307.0, 5.3),
        Hardware("L4", 121.0, 0.3),
    )
}


@dataclass(frozen=True)
class ModelShape:
    """What a roofline needs of a model."""

    name: str
    params_b: float
    """Billions of parameters that a token passes (active ones of a mixture)."""
    weight_gb: float
    """Read once a step."""
    kv_kb_per_token: float
    """Keys and values of a token of context."""


MODELS: dict[str, ModelShape] = {
    m.name: m
    for m in (
        ModelShape("llama-8b", 8.0, 16.1, 131.0),
        ModelShape("llama-70b", 70.6, 141.0, 328.0),
        ModelShape("smollm2-135m", 0.135, 0.27, 23.0),
    )
}
DEFAULT_MODEL = "H100/llama-8b"
"""What is simulated where no cost was measured, HARDWARE/MODEL: a labelled model of a cheap drafter
on one GPU. Chosen for its shape: 64 requests of six tokens lie beyond the batch up to which its
cost is flat, so that trimming can pay there."""
_ROOFLINE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


def roofline(
    hardware: Hardware,
    target: ModelShape,
    *,
    drafter_share: float = 0.05,
    num_speculative_tokens: int = 5,
    context_tokens: int = 2048,
    overhead_ms: float = 0.5,
    efficiency: float = 0.6,
) -> CostTable:
    """Return the cost that peak compute and bandwidth allow: a model, not a measurement.

    The target's pass takes the longer of its arithmetic, 2 params a token, and the reading of
    its weights; keys and values are read besides. Each of the K draft passes reads
    ``drafter_share`` of all that.

    Parameters
    ----------
    hardware, target
    drafter_share : float
        Size of the drafter as a share of the target.
    num_speculative_tokens : int
        K, the draft passes; they can be saved.
    context_tokens : int
        Of each request.
    overhead_ms : float
        A step's launch and sampling overhead.
    efficiency : float
        Share of both peaks that is reached.

    Examples
    --------
    >>> table = roofline(HARDWARE["H100"], MODELS["llama-8b"])
    >>> table.source, bool(table.verify.at(512) > 1.5 * table.verify.at(8))
    ('model', True)
    """
    flops = efficiency * hardware.tflops * 1e9  # per ms
    bandwidth = efficiency * hardware.bandwidth_tb * 1e9  # bytes per ms
    sizes = np.array(_ROOFLINE_SIZES, dtype=np.float64)

    def passes(share: float, tokens: FloatArray) -> FloatArray:
        compute = 2e9 * target.params_b * share * tokens / flops
        return np.maximum(compute, share * target.weight_gb * 1e9 / bandwidth)

    kv_ms = 1e3 * target.kv_kb_per_token * context_tokens / bandwidth  # per request
    K = num_speculative_tokens
    draft = K * (passes(drafter_share, sizes) + drafter_share * kv_ms * sizes)
    return CostTable(
        f"{hardware.name} {target.name} (model)",
        "model",
        verify=Curve(_ROOFLINE_SIZES, tuple(passes(1.0, sizes).tolist())),
        draft=Curve(_ROOFLINE_SIZES, tuple(draft.tolist())),
        batch=Curve((0, 1), (0.0, kv_ms)),
        fixed_ms=overhead_ms,
        draft_passes=K,
        note=(
            f"roofline at {efficiency:.0%} of {hardware.tflops:g} TFLOP/s and "
            f"{hardware.bandwidth_tb:g} TB/s, drafter {drafter_share:.0%} of the target, context "
            f"{context_tokens} tokens: a model, not a measurement"
        ),
    )


class Account(NamedTuple):
    """What a cycle of speculation costs and saves, ms."""

    inside: tuple[str, ...]
    """Parts that the stated total contains."""
    outside: tuple[str, ...]
    """Parts that it leaves out."""
    net_ms: float
    """Saved less everything spent."""
    sentence: str


def account(parts_ms: Mapping[str, float], *, stated_total_ms: float, saved_ms: float) -> Account:
    """Say which parts a stated total contains, and what is left of the saving after all of them.

    The parts inside are those whose sum comes nearest to the total; break-even counts every part
    once, the stated total standing for those it contains.

    Examples
    --------
    >>> parts = {"propose": 332.0, "verify": 964.4, "replay": 1063.1}
    >>> found = account(parts, stated_total_ms=2039.9, saved_ms=1045.3)
    >>> found.outside, round(found.net_ms, 1)
    (('propose',), -1326.6)
    """
    names = list(parts_ms)
    if len(names) > 16:
        raise InputError(f"account takes up to 16 parts, got {len(names)}")
    subsets = [
        [name for i, name in enumerate(names) if mask >> i & 1] for mask in range(1 << len(names))
    ]
    inside = min(subsets, key=lambda s: abs(sum(parts_ms[n] for n in s) - stated_total_ms))
    outside = [name for name in names if name not in inside]
    net = saved_ms - stated_total_ms - sum(parts_ms[name] for name in outside)
    known = sum(parts_ms[name] for name in inside)
    sentence = (
        f"the stated total of {stated_total_ms:g} ms contains {' + '.join(inside) or 'no part'} "
        f"({known:g} ms)"
        + (f" and leaves out {', '.join(outside)}" if outside else "")
        + f": net {net:+.1f} ms"
    )
    return Account(tuple(inside), tuple(outside), net, sentence)


@dataclass(frozen=True)
class StepSizes:
    """Sizes and times of logged steps, arrays over the steps that only decoded."""

    requests: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    """That the target read, padding included where it is known."""
    verify_ms: npt.NDArray[np.float64]
    draft_ms: npt.NDArray[np.float64]
    min_steps: int = field(default=3)
    """Sizes seen less often are left out."""


def table_from_steps(
    steps: StepSizes, *, num_speculative_tokens: int, name: str = "log"
) -> CostTable:
    """Return the cost table that the steps of a log measured.

    Medians by size, non-decreasing, linear between them. A log of fixed length at one
    concurrency holds few sizes: then the table says nothing between them, which the note tells.

    Raises
    ------
    InputError
        No size was seen ``min_steps`` times.
    """
    verify = _often(steps.tokens, steps.verify_ms, steps.min_steps)
    drafted = np.isfinite(steps.draft_ms) & (steps.draft_ms > 0)
    draft = _often(steps.requests[drafted], steps.draft_ms[drafted], steps.min_steps)
    if verify is None:
        raise InputError(
            f"{name}: no batch size was measured {steps.min_steps} times (steps with verify_ms "
            "that read no prompt); measure a table with `draftlab profile`"
        )
    return CostTable(
        name,
        "measured",
        verify=verify,
        draft=ZERO if draft is None else draft,
        draft_passes=num_speculative_tokens,
        note=f"medians of {len(steps.tokens)} logged steps at {len(verify.sizes)} batch size"
        f"{'s' if len(verify.sizes) > 1 else ''}",
    )


def _often(sizes: npt.NDArray[np.int64], ms: npt.NDArray[np.float64], least: int) -> Curve | None:
    known = np.isfinite(ms)
    distinct, counts = np.unique(sizes[known], return_counts=True)
    keep = known & np.isin(sizes, distinct[counts >= least])
    return measured_curve(sizes[keep], ms[keep]) if keep.any() else None
