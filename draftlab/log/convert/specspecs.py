"""Records of specspecs 0.1.0: Parquet files sequences-* and drafts-* in one folder.

A row of drafts holds one proposal: draft_tokens and acceptances of length k, acceptance_length
and emitted_token. From a sequence's second step on the first entry repeats the token emitted
before: it is no draft, and is left out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEQUENCES = ("run_id", "sequence_id", "prompt_token_ids", "prompt_len")
_DRAFTS = ("run_id", "sequence_id", "step", "draft_tokens", "acceptances")


def read(source: str | Path, out: str | Path, *, drafting: str, temperature: float) -> list[Path]:
    """Write the runs of a folder as a draft log; return their folders.

    Features are not in these files, so the log holds labels, positions and lengths only. A
    proposal is a step of its own. Prompts are known by a hash, so that the same prompt is one
    group.

    Raises
    ------
    InputError
        Files or columns are missing, or a proposal has not one flag for each token.
    """
    sequences = _scan(Path(source), "sequences", _SEQUENCES)
    drafts = _scan(Path(source), "drafts", _DRAFTS).sort("run_id", "sequence_id", "step")
    uneven = drafts.filter(pl.col("draft_tokens").list.len() != pl.col("acceptances").list.len())
    if len(uneven):
        raise InputError(
            f"{source}: {len(uneven)} proposals of drafts-* have not one flag for each token"
        )
    runs = drafts["run_id"].unique().sort().to_list()
    K = int(drafts.select(pl.col("draft_tokens").list.len().max().fill_null(0)).item())
    return [
        _write(
            # the disk may be slower than the reading, and nothing may be dropped
            LogWriter(out, _metadata(run, K, drafting), max_pending_rows=K * len(drafts) + 1),
            drafts.filter(run_id=run),
            sequences.filter(run_id=run),
            temperature,
        )
        for run in runs
    ]


def _scan(folder: Path, table: str, columns: Sequence[str]) -> pl.DataFrame:
    files = sorted(folder.glob(f"{table}-*.parquet"))
    if not files:
        raise InputError(f"{folder}: no {table}-*.parquet, so no records of specspecs")
    frame = pl.read_parquet(files)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise InputError(f"{files[0]}: column {', '.join(absent)} is missing")
    return frame


def _write(
    log: LogWriter, drafts: pl.DataFrame, sequences: pl.DataFrame, temperature: float
) -> Path:
    prompts = dict(sequences.select("sequence_id", "prompt_token_ids").iter_rows())
    numbers = {name: i for i, name in enumerate(sequences["sequence_id"].unique().sort())}
    strangers = drafts.filter(~pl.col("sequence_id").is_in(list(numbers)))
    if len(strangers):
        raise InputError(f"sequence {strangers['sequence_id'][0]} is not in sequences-*")
    with log:
        for name, number in numbers.items():
            tokens = prompts[name] or []
            digest = hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16]
            log.request(
                number,
                group=digest,
                dataset="unknown",
                temperature=temperature,
                prompt_tokens=len(tokens),
            )
        for step, (name, flags) in enumerate(_without_repeats(drafts).iter_rows()):
            counts = {"num_requests": 1, "num_sampling_requests": 1, "num_non_draft_tokens": 1}
            row = {"step": step, "num_proposed": len(flags), "num_admitted": len(flags)}
            log.step(row | counts, _rows(numbers[name], step, flags))
    return log.folder


def _without_repeats(drafts: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("step") == pl.col("step").min().over("sequence_id")
    flags = pl.col("acceptances").cast(pl.List(pl.Boolean))
    return drafts.select("sequence_id", pl.when(first).then(flags).otherwise(flags.list.slice(1)))


def _rows(request: int, step: int, flags: list[bool]) -> dict[str, np.ndarray[Any, Any]]:
    n, accepted = len(flags), np.array(flags, dtype=np.bool_)
    behind = np.cumsum(~accepted) - ~accepted > 0
    return {
        "request": np.full(n, request),
        "step": np.full(n, step),
        "verify_step": np.full(n, step),
        "slot": np.zeros(n, dtype=np.int32),
        "position": np.arange(n, dtype=np.int16),
        "admitted": np.ones(n, dtype=np.bool_),
        "accepted": np.ma.MaskedArray(accepted, behind),
        "excluded": np.zeros(n, dtype=np.uint16),
    }


def _metadata(run: object, K: int, drafting: str) -> dict[str, Any]:
    return {
        "run": str(run),
        "engine": "specspecs 0.1.0",
        "target": "unknown target",
        "drafter": "unknown drafter",
        "method": "unknown",
        "drafting": drafting,
        "verification": "unknown",
        "num_speculative_tokens": K,
        "feature_source": "none",
        "adaptive_verification": "off",
        "vocab_size": 0,
        "device": "unknown",
        "provenance": {"converted_from": "specspecs"},
    }
