"""What is in a log: counts, acceptance and acceptance length, by run and by workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.schema import Excluded

if TYPE_CHECKING:
    from draftlab.log.reader import DraftLog

_AFTER_STOP = (pl.col("excluded") & int(Excluded.AFTER_STOP)) != 0
_WARMUP = (pl.col("excluded") & int(Excluded.WARMUP)) != 0


def proposals(log: DraftLog, *, warmup: bool = False) -> pl.LazyFrame:
    """Return one row per verified proposal; those of dummy requests only if ``warmup``.

    Columns: run, request, step, slot, num_admitted, num_labelled, num_accepted and
    acceptance_length (tokens), which is the accepted draft tokens plus the recovered or bonus
    token; behind a stop token nothing is counted, and there is no bonus. Nor is there one where
    the last draft ends its request, which only the request's own count of tokens tells.
    """
    kept = pl.col("accepted").fill_null(value=False) & ~_AFTER_STOP
    eligible = pl.col("accepted").is_not_null() & (pl.col("excluded") == 0)
    ends = log.requests.group_by("run", "request").agg(pl.col("output_tokens").last())
    return (
        log.drafts.filter(pl.col("verify_step").is_not_null() & (warmup | ~_WARMUP))
        .group_by("run", "request", "step", "slot")
        .agg(
            num_admitted=pl.col("admitted").sum(),
            num_labelled=eligible.sum(),
            num_accepted=kept.sum(),
            stopped=(pl.col("accepted").is_not_null() & _AFTER_STOP).any(),
            output_index=pl.col("output_index").first(),
        )
        .join(ends, on=["run", "request"], how="left", maintain_order="left")
        .with_columns(
            acceptance_length=pl.min_horizontal(
                pl.col("num_accepted") + (~pl.col("stopped")).cast(pl.UInt32),
                # null, where either is unknown, does not count
                (pl.col("output_tokens") - pl.col("output_index")).cast(pl.UInt32, strict=False),
            )
        )
        .drop("stopped", "output_index", "output_tokens")
    )


def workloads(log: DraftLog) -> pl.DataFrame:
    """Return a row per run and workload, sorted.

    Columns: run, dataset, requests, prompts, proposals, labelled, acceptance (conditional rate of
    eligible rows), acceptance_length (tokens per verification, each verification counting once)
    and acceptance_length_by_request (mean over requests of their own mean).
    """
    requests = log.requests.select("run", "request", "dataset", "group")
    labelled = (
        log.drafts.filter(pl.col("accepted").is_not_null() & (pl.col("excluded") == 0))
        .join(requests, on=["run", "request"])
        .group_by("run", "dataset")
        .agg(labelled=pl.len(), acceptance=pl.col("accepted").mean())
    )
    lengths = (
        proposals(log)
        .group_by("run", "request")
        .agg(
            proposals=pl.len(),
            emitted=pl.col("acceptance_length").sum(),
            own=pl.col("acceptance_length").mean(),
        )
    )
    return (
        requests.join(lengths, on=["run", "request"], how="left")
        .group_by("run", "dataset")
        .agg(
            requests=pl.len(),
            prompts=pl.col("group").n_unique(),
            proposals=pl.col("proposals").sum(),
            # Null where nothing was verified: 0 / 0 is not a length.
            acceptance_length=(pl.col("emitted").sum() / pl.col("proposals").sum()).fill_nan(None),
            own=pl.col("own").drop_nulls().sort(),
        )
        # in one order: the last bit of a mean over threads would be another in each run
        .with_columns(acceptance_length_by_request=pl.col("own").list.mean())
        .join(labelled, on=["run", "dataset"], how="left")
        .select(
            "run", "dataset", "requests", "prompts", "proposals", "labelled", "acceptance",
            "acceptance_length", "acceptance_length_by_request",
        )
        .sort("run", "dataset")
        .collect()
    )  # fmt: skip
