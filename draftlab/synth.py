"""Draft logs with known truth, for tests and benchmarks; always labelled synthetic.

Every row has a drafter's distribution q over a small vocabulary and a target's p, so that
the features agree with one another and `overlap` is the true acceptance probability.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftlab import provenance
from draftlab.errors import InputError
from draftlab.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from draftlab._types import FloatArray
    from draftlab.features import Drafting

VOCAB = 16
"""Entries of q. The target has one more, which the drafter never proposes."""
_ROWS_PER_BLOCK = 200_000
_FEATURE_SAMPLE = 4096

Columns = dict[str, np.ndarray[Any, Any]]


class _Shape(NamedTuple):
    """Requests run in waves: as many at once as there are slots, all for so many steps."""

    num_requests: int
    num_positions: int
    steps_per_request: int
    concurrency: int


def synth_log(
    out: str | Path,
    *,
    num_requests: int = 200,
    num_positions: int = 5,
    slope: float = 0.5,
    intercepts: Sequence[float] | None = None,
    acceptance_length: float | None = None,
    seed: int = 0,
    datasets: Mapping[str, float] | None = None,
    request_effect_sd: float = 0.0,
    steps_per_request: int = 20,
    concurrency: int = 16,
    drafting: Drafting = "probabilistic",
    run: str | None = None,
) -> Path:
    """Write a log whose conditional acceptance is sigmoid(slope * logit_qmax + intercept_k + e).

    ``e`` is the shift of the request's dataset plus its own effect. Positions behind the first
    rejection have no label. The truth stands in run.json under ``provenance.truth``.

    Parameters
    ----------
    out : path
        Folder of the log.
    num_requests, num_positions, steps_per_request, concurrency : int
        Requests, K, proposals of each request, requests at once.
    slope : float
        Per nat of `logit_qmax` as logged (float32).
    intercepts : K floats, optional
        Fall from 0.5 by 0.25 a position unless told.
    acceptance_length : float, optional
        Expected tokens per verification, fractions too: all intercepts are shifted alike to meet
        it. Simulators that round it have shown one length only.
    seed : int
    datasets : mapping of name to shift of the log-odds, optional
        Requests take turns through them; one dataset ``synthetic`` without shift unless told.
    request_effect_sd : float
        Standard deviation of a normal effect per request: rows of a request then resemble one
        another more than the features tell.
    drafting : {"probabilistic", "greedy"}
    run : str, optional
        Name of the run; ``synthetic-SEED`` unless told.

    Returns
    -------
    Path
        Folder of the run.

    Raises
    ------
    InputError
        The run exists, there are not K intercepts, or no shift reaches the acceptance length.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.log.reader import open_log
    >>> folder = synth_log(tempfile.mkdtemp(), num_requests=4)
    >>> sum(run.rows["drafts"] for run in open_log(folder).runs)
    400
    """
    name = f"synthetic-{seed}" if run is None else run
    if (Path(out) / name).exists():
        raise InputError(f"{Path(out) / name}: exists; name another run or folder")
    base = _intercepts(intercepts, num_positions)
    shifts = {"synthetic": 0.0} if datasets is None else dict(datasets)
    shape = _Shape(num_requests, num_positions, steps_per_request, concurrency)
    rng = np.random.default_rng(seed)
    offsets = np.resize(list(shifts.values()), num_requests)
    offsets = offsets + rng.normal(scale=request_effect_sd, size=num_requests)
    if acceptance_length is not None:
        base = base + _shift_to(acceptance_length, slope, base, offsets)
    truth = {
        "slope": slope,
        "intercepts": base.tolist(),
        "datasets": shifts,
        "request_effect_sd": request_effect_sd,
    }
    emitted = np.zeros(num_requests, dtype=np.int64)
    # a slow disk must not drop rows here: unlike an engine, the loop may wait
    room = num_requests * steps_per_request * num_positions + 1
    with LogWriter(
        out, _metadata(name, shape, drafting, seed, truth), max_pending_rows=room
    ) as log:
        for request in range(num_requests):
            dataset = list(shifts)[request % len(shifts)]
            log.request(request, group=f"prompt-{request}", dataset=dataset, temperature=1.0)
        for rows in _blocks(shape, slope, base, offsets, drafting, rng):
            _write_steps(log, rows, emitted)
        for request in range(num_requests):
            total = int(emitted[request])
            log.request(request, output_tokens=total, finish_reason="length")
    if log.error is not None:
        raise log.error
    return Path(out) / name


def _intercepts(given: Sequence[float] | None, num_positions: int) -> FloatArray:
    if given is None:
        return np.linspace(0.5, 0.75 - 0.25 * num_positions, num_positions)
    if len(given) != num_positions:
        raise InputError(f"wanted {num_positions} intercepts, one per position, got {len(given)}")
    return np.asarray(given, dtype=np.float64)


def _shift_to(
    length: float, slope: float, intercepts: FloatArray, offsets: FloatArray
) -> FloatArray:
    """Return the shift of all intercepts under which proposals emit ``length`` tokens in the mean.

    Positions draw their features independently, so given a request's offset survival is a product
    of mean chances; the means are over one fixed sample of features.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    longest = 1 + len(intercepts)
    if not 1 < length < longest:
        raise InputError(f"acceptance_length must be between 1 and K + 1 = {longest}, got {length}")
    feature = slope * _draw_logits(_FEATURE_SAMPLE, np.random.default_rng(0))[1]
    effects = np.quantile(offsets, np.linspace(0.5 / 64, 1 - 0.5 / 64, 64))

    def excess(shift: float) -> float:
        logit = shift + intercepts[:, None, None] + effects[:, None]
        survival = expit(logit + feature).mean(axis=-1).cumprod(axis=0)
        return 1 + float(survival.sum(axis=0).mean()) - length

    try:
        found: float = brentq(excess, -40, 40, xtol=1e-6)
    except ValueError:
        raise InputError(f"no shift of the intercepts gives length {length}") from None
    return np.asarray(found)


def _metadata(
    run: str, shape: _Shape, drafting: Drafting, seed: int, truth: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "run": run,
        "engine": f"synthetic draftlab {provenance.version()}",
        "target": "synthetic target",
        "drafter": "synthetic drafter",
        "method": "synthetic",
        "drafting": drafting,
        "verification": "standard",
        "num_speculative_tokens": shape.num_positions,
        "feature_source": "head",
        "adaptive_verification": "off",
        "vocab_size": VOCAB,
        "device": "none",
        "provenance": provenance.collect(seed=seed, synthetic=True, truth=dict(truth)),
    }


def _blocks(
    shape: _Shape,
    slope: float,
    intercepts: FloatArray,
    offsets: FloatArray,
    drafting: Drafting,
    rng: np.random.Generator,
) -> Iterator[Columns]:
    """Yield rows of `drafts`, whole steps in order, at most about `_ROWS_PER_BLOCK` at once."""
    rows_per_step = shape.concurrency * shape.num_positions
    steps = max(1, _ROWS_PER_BLOCK // rows_per_step)
    waves = -(-shape.num_requests // shape.concurrency)
    for start in range(0, waves * shape.steps_per_request, steps):
        stop = min(start + steps, waves * shape.steps_per_request)
        keys = _keys(shape, np.arange(start, stop))
        shift = intercepts[keys["position"]] + offsets[keys["request"]]
        measured = _measure(shift, slope, drafting, rng)
        drawn = rng.random(len(shift)) < measured.pop("probability")
        yield keys | measured | {"accepted": _censor(drawn, shape.num_positions)}


def _keys(shape: _Shape, steps: np.ndarray[Any, Any]) -> Columns:
    step, slot, position = (
        axis.ravel()
        for axis in np.meshgrid(
            steps, np.arange(shape.concurrency), np.arange(shape.num_positions), indexing="ij"
        )
    )
    request = step // shape.steps_per_request * shape.concurrency + slot
    busy = request < shape.num_requests  # slots of the last wave may stay empty
    return {
        "request": request[busy],
        "step": step[busy],
        "slot": slot[busy].astype(np.int32),
        "position": position[busy].astype(np.int16),
    }


def _measure(
    shift: FloatArray, slope: float, drafting: Drafting, rng: np.random.Generator
) -> Columns:
    """Draw q, x and p for each row; return the features and the chance that x is accepted."""
    n = len(shift)
    log_q, logit_qmax = _draw_logits(n, rng)
    q = np.exp(log_q)
    drawn = np.zeros(n, dtype=np.int64)
    if drafting == "probabilistic":
        drawn = np.minimum((q.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), VOCAB - 1)
    rest = q[:, 1:].sum(axis=1)
    overlap = 1 / (1 + np.exp(-(slope * logit_qmax.astype(np.float64) + shift)))
    is_top = drawn == 0
    other = np.minimum(q[np.arange(n), drawn], 0.5)  # a token below the top has at most half
    sampled = np.where(is_top, logit_qmax, np.log(other) - np.log1p(-other))
    accept_prob = overlap
    if drafting == "probabilistic":
        accept_prob = _accept_prob(overlap, q[:, 0], rest, is_top)
    return {
        "logit_qmax": logit_qmax,
        "top2_margin": (log_q[:, 0] - log_q[:, 1]).astype(np.float32),
        "entropy": -(q * log_q).sum(axis=1).astype(np.float32),
        "logit_q_sampled": sampled.astype(np.float32),
        "overlap": overlap.astype(np.float32),
        "accept_prob": accept_prob.astype(np.float32),
        "probability": accept_prob,
    }


def _draw_logits(n: int, rng: np.random.Generator) -> tuple[FloatArray, np.ndarray[Any, Any]]:
    """Return log q [n, vocab], falling, and the log-odds of its top token.

    The log-odds are float32: the log's own column is the one of the truth.
    """
    sharpness = rng.gamma(1.5, 1.5, size=(n, 1))
    logits = np.sort(sharpness * rng.normal(size=(n, VOCAB)), axis=1)[:, ::-1]
    log_q = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    logit_qmax = log_q[:, 0] - np.log(np.exp(log_q)[:, 1:].sum(axis=1))
    return log_q, logit_qmax.astype(np.float32)


def _accept_prob(
    overlap: FloatArray, top: FloatArray, rest: FloatArray, is_top: np.ndarray[Any, Any]
) -> FloatArray:
    """Return p(x)/q(x) of the drawn token, higher for the top token, with mean `overlap` under q.

    overlap + d rest at the top token and overlap - d top elsewhere, d half as large as [0, 1]
    allows; the target keeps its remaining mass on a token that q lacks.
    """
    furthest = np.minimum((1 - overlap) / rest, overlap / top)
    return np.asarray(overlap + 0.5 * furthest * np.where(is_top, rest, -top))


def _censor(drawn: np.ndarray[Any, Any], num_positions: int) -> np.ndarray[Any, Any]:
    """Return the labels as a masked array: unobserved behind the first rejection."""
    by_proposal = drawn.reshape(-1, num_positions)
    rejections = np.cumsum(~by_proposal, axis=1)
    unobserved = rejections - ~by_proposal > 0
    return np.ma.MaskedArray(drawn, unobserved.ravel())


def _write_steps(log: LogWriter, rows: Columns, emitted: np.ndarray[Any, Any]) -> None:
    """Hand the rows over step by step, as an engine does, and count emitted tokens."""
    steps, starts = np.unique(rows["step"], return_index=True)
    bounds = [*starts.tolist(), len(rows["step"])]
    accepted = np.ma.getdata(rows["accepted"]) & ~np.ma.getmaskarray(rows["accepted"])
    for step, low, high in zip(steps.tolist(), bounds[:-1], bounds[1:], strict=True):
        part = {name: column[low:high] for name, column in rows.items()}
        first = part["position"] == 0
        request = part["request"][first]
        per_request = np.add.reduceat(accepted[low:high], np.flatnonzero(first), dtype=np.int64)
        num_positions = (high - low) // len(request)
        part |= {
            "verify_step": part["step"],
            "output_index": np.repeat(emitted[request], num_positions).astype(np.int32),
            "admitted": np.ones(high - low, dtype=np.bool_),
            "excluded": np.zeros(high - low, dtype=np.uint16),
        }
        emitted[request] += per_request + 1
        num_accepted = int(per_request.sum())
        log.step(
            {
                "step": step,
                "num_requests": len(request),
                "num_sampling_requests": len(request),
                "num_non_draft_tokens": len(request),
                "num_proposed": high - low,
                "num_admitted": high - low,
                "num_accepted": num_accepted,
                "num_emitted": num_accepted + len(request),
                "offered_k": num_positions,
            },
            part,
        )
