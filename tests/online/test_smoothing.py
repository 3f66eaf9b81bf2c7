"""The smoothed head is the loop that one would write by hand, whatever the batches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from draftlab.log.reader import open_any
from draftlab.log.writer import LogWriter
from draftlab.online.smoothing import EMA_WEIGHT, SMOOTHED, Smoother
from draftlab.studies.replay.replay import ReplaySettings, replay_runs
from tests.logs import METADATA, proposal

if TYPE_CHECKING:
    from pathlib import Path

K = 3


def traffic() -> list[dict[str, Any]]:
    """Two slots; the second is given to another request half way, which begins anew."""
    generator = np.random.default_rng(5)
    out = []
    for step in range(60):
        for slot in (0, 1):
            n = int(generator.integers(0, K + 1))
            verdict = [True] * n + [False] * (n < K) + [None] * (K - n - 1)
            request = slot if step < 30 else 2 * slot
            confidence = generator.normal(0.5, 2.0, K).astype(np.float32)
            out.append(proposal(step, verdict, request=request, slot=slot, confidence=confidence))
    return out


def by_hand(proposals: list[dict[str, Any]]) -> list[float]:
    """Smooth the probabilities of each request and position, one proposal after the other."""
    held: dict[tuple[int, int], float] = {}
    out = []
    for rows in proposals:
        for k in range(K):
            key = int(rows["request"][0]), k
            p = 1 / (1 + np.exp(-float(rows["confidence"][k])))
            held[key] = p if key not in held else EMA_WEIGHT * held[key] + (1 - EMA_WEIGHT) * p
            out.append(held[key])
    return out


def write(folder: Path, proposals: list[dict[str, Any]]) -> Path:
    metadata = METADATA | {"num_speculative_tokens": K}
    with LogWriter(folder, metadata) as log:
        for request in (0, 1, 2):
            log.request(request, group=f"g{request}", dataset="d", temperature=1.0)
        for first, second in zip(proposals[::2], proposals[1::2], strict=True):
            log.step({"step": int(first["step"][0])}, first)
            log.step(None, second)
    return log.folder


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_batches_do_not_change_what_is_smoothed(size: int) -> None:
    proposals = traffic()
    frame = pl.concat(
        pl.DataFrame({name: rows[name] for name in ("slot", "request", "position", "confidence")})
        for rows in proposals
    )
    smoother = Smoother()
    parts = [smoother.add(frame[low : low + size]) for low in range(0, len(frame), size)]
    found = 1 / (1 + np.exp(-pl.concat(parts)[SMOOTHED].to_numpy()))
    np.testing.assert_allclose(found, by_hand(proposals), rtol=1e-12)


def test_the_smoothed_head_is_graded_on_the_labelled_rows(tmp_path: Path) -> None:
    """Hidden drafts move the average, as they do live: they had a confidence too."""
    proposals = traffic()
    folder = write(tmp_path, proposals)
    [only] = folder.glob("drafts/*.parquet")
    whole = pl.read_parquet(only)
    only.unlink()
    for number, (low, high) in enumerate(itertools.pairwise([0, 50, 51, 200, len(whole)])):
        whole[low:high].write_parquet(folder / "drafts" / f"part-{number:05d}.parquet")
    result = replay_runs(
        open_any(folder), ReplaySettings(("ema-head", "head"), offline=False, window=10)
    )
    labels = np.ma.concatenate([rows["accepted"] for rows in proposals])
    raw = 1 / (1 + np.exp(-np.concatenate([rows["confidence"] for rows in proposals])))
    for name, p in (("ema-head", np.array(by_hand(proposals))), ("head", raw.astype(np.float64))):
        seen = ~np.ma.getmaskarray(labels)
        loss = -np.log(np.where(labels.data[seen], p[seen], 1 - p[seen])).mean()
        row = result.summary.filter(estimator=name).row(0, named=True)
        assert row["n"] == seen.sum()
        assert row["log_loss"] == pytest.approx(loss, rel=1e-6)
        assert row["refits"] == 0
    assert result.notes == []


def test_a_request_that_comes_back_to_another_slot_begins_anew() -> None:
    rows = {"position": [0, 0], "confidence": np.array([3.0, -1.0], np.float32)}
    frame = pl.DataFrame({"slot": [0, 1], "request": [7, 7], **rows})
    assert Smoother().add(frame)[SMOOTHED].to_list() == pytest.approx([3.0, -1.0])
