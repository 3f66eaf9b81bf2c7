"""Two logs side by side: what makes them incomparable, and differences with intervals by prompt.

Where both hold the same prompts, a difference is paired: each prompt's influence on the one
number less its influence on the other, so that what makes a prompt hard for both falls out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from draftlab.errors import InputError
from draftlab.grading.by import Grouping, make_grouping
from draftlab.log.files import shown_path
from draftlab.log.reader import open_any
from draftlab.log.summary import proposals
from draftlab.metrics import auc_influence, divide, half_width, row_pairs, sum_by
from draftlab.plugins import Plugin, as_plugin
from draftlab.results import Note, Result, study, tidy
from draftlab.schema import REQUESTS
from draftlab.studies.evaluate import Evaluation, evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from draftlab._types import BoolArray, FloatArray, IntArray
    from draftlab.log.reader import DraftLog

PAIRED_SHARE = 0.5
"""Prompts are paired, and the others left out, where at least this share of the smaller log's
prompts is in both; otherwise every prompt counts, and those in both still pair in the interval."""
METRICS = ("auc", "log_loss", "brier", "mean_prediction")
TABLES = ("setup", "predictors", "acceptance")

_SETUP = (
    ("target", "target", "the models differ, so no number says anything about settings"),
    ("drafter", "drafter", "the drafters differ, so the differences include those of the drafters"),
    ("method", "drafting method", "drafts are made in another way"),
    ("drafting", "drafting", "greedy and probabilistic drafts are accepted by different rules"),
    (
        "num_speculative_tokens",
        "K",
        "acceptance rates fall as K rises with the same drafter, so they are not compared; "
        "acceptance at each position and acceptance length are, and predictors are graded at the "
        "positions that both logs have",
    ),
    ("verification", "verification", "drafts are accepted by another rule"),
    (
        "adaptive_verification",
        "adaptive verification",
        "a live prediction chose which drafts were observed, so grades of predictors are biased",
    ),
    ("feature_source", "feature source", "features come from another distribution"),
    ("engine", "engine", "the engine or its version differs"),
    ("device", "device", "arithmetic differs, so greedy ties may fall elsewhere"),
    ("vocab_size", "vocabulary", "the vocabularies differ"),
)
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Comparison(Result):
    """Tidy results of `compare`; a and b are the two logs, differences are a - b."""

    command = "compare"

    setup: pl.DataFrame = tidy(
        """One row per setting: setting, a, b, differs, consequence (what that makes of the numbers;
        empty where they agree)."""
    )
    predictors: pl.DataFrame = tidy(
        """One row per predictor and metric on the positions that both logs have: predictor,
        lossless, by (null: all; otherwise a value of the column asked for), metric (auc, log_loss,
        brier, mean_prediction), a, b, difference, low, high (95 % by prompt), distinguishable
        (null: no interval), n_a, n_b, n_prompts (prompts in the interval), paired (at least half
        of them are in both)."""
    )
    acceptance: pl.DataFrame = tidy(
        """One row per measure (acceptance_length, conditional), dataset (null: all) and position
        (null: all): a, b, difference, low, high, distinguishable, n_a, n_b, n_prompts, paired,
        comparable (False: a rate over all positions at different K; its difference is null)."""
    )


class _Side(NamedTuple):
    """One log, with what the differences are made from."""

    log: DraftLog
    evaluation: Evaluation
    rows: pl.DataFrame
    """Graded rows with prompt (codes that both logs share), fold, accepted, log-odds."""
    lengths: pl.DataFrame
    """Verified proposals: prompt, dataset, acceptance_length."""


class _Influence(NamedTuple):
    """A number, and what each prompt contributes to its error."""

    value: float
    of_prompt: FloatArray
    """(prompts,): 0 for those that it lacks."""
    present: BoolArray
    strata: int


@study
def compare(
    a: DraftLog | str | Path | Sequence[str | Path],
    b: DraftLog | str | Path | Sequence[str | Path],
    *,
    allow_trimmed: bool = True,
    plugin: Plugin | str | Path | Sequence[str | Path] | None = None,
    by: str | None = None,
    where: str | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Compare two logs of one cell each: predictors, acceptance lengths, conditional acceptance.

    Parameters
    ----------
    a, b : path, paths or DraftLog
        Each of one pair, one way of drafting and one K; the two may differ in anything, which
        ``setup`` then says.
    allow_trimmed : bool
        Take logs of adaptive verification, with a warning in ``setup``.
    plugin : Plugin, path or paths, optional
        A user's features and predictors, graded on both logs, as in `evaluate`.
    by : str, optional
        One more way to cut the rows, as in `evaluate`: ``"prompt_tokens:100,500"``.
    where : str, optional
        Part of each log, as in `DraftLog.narrow`: ``"temperature = 0 and prompt_tokens > 100"``.
    out : path, optional
        Write the result there.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        A log with several cells, or one that cannot be evaluated.
    """
    logs = [open_any(a, where), open_any(b, where)]
    added = as_plugin(plugin)
    evaluations = [
        evaluate(log, keep_predictions=True, allow_trimmed=allow_trimmed, plugin=added)
        for log in logs
    ]
    for name, evaluation in zip("ab", evaluations, strict=True):
        _refuse_several(name, evaluation)
    first, second, prompts = _arrange(logs, evaluations, by)
    kept, how = _choose_prompts(first, second, prompts)
    first, second = (_keep(side, kept) for side in (first, second))
    K = min(_num_positions(evaluation) for evaluation in evaluations)
    setup = _compare_setup(first.log, second.log, first.evaluation, second.evaluation, how)
    same_k = not setup.filter(pl.col("differs"), setting="K").height
    return Comparison(
        setup=setup,
        predictors=_compare_predictors(_cut(first, K), _cut(second, K), len(prompts)),
        acceptance=_compare_acceptance(first, second, len(prompts), same_k=same_k),
        notes=_notes(evaluations),
        settings={
            "paired_share": PAIRED_SHARE,
            "folds": evaluations[0].settings["folds"],
            "by": by,
            "plugins": [shown_path(path) for path in added.paths],
        },
        provenance={},
    )


def _refuse_several(name: str, evaluation: Evaluation) -> None:
    cells = evaluation.acceptance.select("pair", "drafting", "run").unique()
    if len(cells) > 1:
        raise InputError(
            f"log {name} holds {len(cells)} cells (pair, drafting, K), which are never pooled: "
            "name runs of one of them"
        )


def _arrange(
    logs: list[DraftLog], evaluations: list[Evaluation], by: str | None
) -> tuple[_Side, _Side, list[tuple[str, str]]]:
    """Give prompts of both logs common codes, and rows the value of ``by``."""
    tables = []
    groupings = [None, None] if by is None else make_grouping(by, *logs)
    for log, evaluation, grouping in zip(logs, evaluations, groupings, strict=True):
        rows = evaluation.predictions
        assert rows is not None
        requests = log.requests.select("run", "request", "dataset", "group").collect()
        lengths = proposals(log).select("run", "request", "step", "slot", "acceptance_length")
        joined = lengths.collect().join(requests, on=["run", "request"]).sort("run", "step", "slot")
        if grouping is not None:
            rows = _with_value(rows, joined, grouping)
        tables.append((rows, joined.drop_nulls(["dataset", "group"])))
    names = ["dataset", "group"]
    every = pl.concat([table.select(names) for pair in tables for table in pair]).unique()
    codes = every.sort(names).with_row_index("prompt")
    sides = [
        _Side(
            log,
            evaluation,
            *(t.join(codes, on=names, how="left", maintain_order="left") for t in pair),
        )
        for log, evaluation, pair in zip(logs, evaluations, tables, strict=True)
    ]
    return sides[0], sides[1], codes.select(names).rows()


def _with_value(rows: pl.DataFrame, lengths: pl.DataFrame, grouping: Grouping) -> pl.DataFrame:
    """Return graded rows with the value that they are grouped by, as ``by``."""
    keys = ["run", "step", "slot"]
    known = lengths.select(*keys, "request")
    coded = grouping.code(rows.select(keys).join(known, on=keys, how="left", maintain_order="left"))
    return rows.with_columns(by=grouping.name(coded))


def _choose_prompts(
    first: _Side, second: _Side, prompts: list[tuple[str, str]]
) -> tuple[BoolArray | None, str]:
    """Return the prompts to keep (None: all), and in words how they pair."""
    present = [np.zeros(len(prompts), dtype=np.bool_) for _ in range(2)]
    for side, mark in zip((first, second), present, strict=True):
        mark[side.rows["prompt"].to_numpy()] = True
    both = present[0] & present[1]
    least = min(int(mark.sum()) for mark in present)
    counts = f"{int(both.sum())} in both"
    if both.sum() >= max(2, PAIRED_SHARE * least):
        return both, f"{counts}; differences are paired on them, and the others are left out"
    return None, f"{counts}, too few to pair, so every prompt counts"


def _num_positions(evaluation: Evaluation) -> int:
    return max(int(cell["num_speculative_tokens"]) for cell in evaluation.settings["cells"])


def _cut(side: _Side, num_positions: int) -> _Side:
    """Leave out rows at positions that the other log does not have."""
    return side._replace(rows=side.rows.filter(pl.col("position") < num_positions))


def _keep(side: _Side, prompts: BoolArray | None) -> _Side:
    if prompts is None:
        return side
    kept = pl.Series(np.flatnonzero(prompts)).cast(pl.UInt32)
    rows, lengths = (
        table.filter(pl.col("prompt").is_in(kept.implode())) for table in (side.rows, side.lengths)
    )
    return side._replace(rows=rows, lengths=lengths)


def _compare_setup(
    a: DraftLog, b: DraftLog, evaluation_a: Evaluation, evaluation_b: Evaluation, how: str
) -> pl.DataFrame:
    settings = [
        (title, _values(a, key), _values(b, key), consequence) for key, title, consequence in _SETUP
    ]
    moved = "p and q change, so acceptance and features both change"
    for name in _SAMPLING:
        values = _request_values(a, name), _request_values(b, name)
        settings.append((name.replace("_", "-"), *values, moved))
    datasets = _request_values(a, "dataset"), _request_values(b, "dataset")
    settings.append(("workloads", *datasets, "the workloads differ"))
    rows = [
        (name, first, second, first != second, consequence if first != second else "")
        for name, first, second, consequence in settings
    ]
    prompts = [log.requests.select(_PROMPT.n_unique()).collect().item() for log in (a, b)]
    rows.append(("prompts", str(prompts[0]), str(prompts[1]), prompts[0] != prompts[1], how))
    graded = [set(evaluation.metrics["predictor"]) for evaluation in (evaluation_a, evaluation_b)]
    if absent := sorted(graded[0] ^ graded[1]):
        left_out = f"only one log has {', '.join(absent)}, so they are not compared"
        rows.append(("predictors", str(len(graded[0])), str(len(graded[1])), True, left_out))
    names = ("setting", "a", "b", "differs", "consequence")
    return pl.DataFrame(rows, schema=names, orient="row")


_PROMPT = pl.struct("dataset", "group")


def _values(log: DraftLog, key: str) -> str:
    return ", ".join(dict.fromkeys(str(run.metadata.get(key)) for run in log.runs))


_ABSENT = {column.name: column.null or "unknown" for column in REQUESTS}
"""What a null of a request says."""


def _request_values(log: DraftLog, column: str) -> str:
    values = log.requests.select(column).unique().sort(column).collect()[column].to_list()
    absent = _ABSENT[column]
    shown = [absent if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(dict.fromkeys(shown))


def _compare_predictors(first: _Side, second: _Side, num_prompts: int) -> pl.DataFrame:
    lossless = dict(first.evaluation.metrics.select("predictor", "lossless").unique().iter_rows())
    shared = set(second.evaluation.metrics["predictor"])
    rows = []
    for predictor in first.evaluation.metrics["predictor"].unique(maintain_order=True):
        if predictor not in shared or predictor not in first.rows.columns:
            continue
        for (value, *sides), metric in itertools.product(_parts(first, second), METRICS):
            graded = [_grade(side, predictor, metric, num_prompts) for side in sides]
            rows.append(
                {"predictor": predictor, "lossless": lossless[predictor], "by": value}
                | {"metric": metric}
                | _difference(*graded)
                | {"n_a": len(sides[0].rows), "n_b": len(sides[1].rows)}
            )
    return pl.DataFrame(rows, schema_overrides={"by": pl.String})


def _parts(first: _Side, second: _Side) -> Iterator[tuple[str | None, _Side, _Side]]:
    """Yield both sides, whole and then by each value that both have."""
    yield None, first, second
    if "by" in first.rows.columns:
        shared = set(second.rows["by"])
        for value in first.rows["by"].unique().sort():
            if value in shared:
                a, b = (s._replace(rows=s.rows.filter(by=value)) for s in (first, second))
                yield value, a, b


def _grade(side: _Side, predictor: str, metric: str, num_prompts: int) -> _Influence:
    """Return a metric of the held-out predictions, and what each prompt contributes."""
    rows = side.rows
    logit, accepted = rows[predictor].to_numpy(), rows["accepted"].to_numpy()
    prompt = rows["prompt"].to_numpy().astype(np.int64)
    if metric == "auc":
        return _auc(logit, accepted, prompt, rows["fold"].to_numpy(), num_prompts)
    prob = np.exp(-np.logaddexp(0.0, -logit))
    values = {
        "log_loss": np.logaddexp(0.0, np.where(accepted, -logit, logit)),
        "brier": (prob - accepted) ** 2,
        "mean_prediction": prob,
    }[metric]
    return _mean(values, prompt, num_prompts)


def _mean(values: FloatArray, prompt: IntArray, num_prompts: int) -> _Influence:
    total = sum_by(prompt, values, num_prompts)
    size = np.bincount(prompt, minlength=num_prompts)
    mean = float(divide(total.sum(), size.sum()))
    gap = np.nan_to_num(divide(total - mean * size, float(size.sum())))
    return _Influence(mean, gap, size > 0, 1)


def _auc(
    score: FloatArray, accepted: BoolArray, prompt: IntArray, fold: IntArray, num_prompts: int
) -> _Influence:
    """Return the AUC within folds, with the influences of prompts, each of which lies in one."""
    wins, chances = (
        sum_by(prompt, values, num_prompts) for values in row_pairs(accepted, score, fold)
    )
    present = np.bincount(prompt, minlength=num_prompts) > 0
    entry = np.zeros(num_prompts, dtype=np.int64)
    fold_of_prompt = entry.copy()
    fold_of_prompt[prompt] = fold
    value, influence = auc_influence(wins, chances, entry, fold_of_prompt, 1)
    return _Influence(float(value[0]), np.nan_to_num(influence), present, len(np.unique(fold)))


def _difference(first: _Influence, second: _Influence) -> dict[str, Any]:
    """Return a - b with its interval over the prompts of either."""
    counted = np.flatnonzero(first.present | second.present)
    gap = first.value - second.value
    influence = (first.of_prompt - second.of_prompt)[counted]
    entry = np.zeros(len(counted), dtype=np.int64)
    half = float(half_width(influence, entry, 1, max(first.strata, second.strata))[0])
    if not np.isfinite(gap):
        half = float("nan")
    low, high = gap - half, gap + half
    both = int((first.present & second.present).sum())
    return {
        "a": first.value,
        "b": second.value,
        "difference": gap,
        "low": low,
        "high": high,
        "distinguishable": bool(low > 0 or high < 0) if np.isfinite(half) else None,
        "n_prompts": len(counted),
        "paired": both >= max(2, PAIRED_SHARE * len(counted)),
    }


def _compare_acceptance(
    first: _Side, second: _Side, num_prompts: int, *, same_k: bool
) -> pl.DataFrame:
    datasets = sorted(set(first.lengths["dataset"]) & set(second.lengths["dataset"]))
    rows = []
    for dataset in (None, *datasets):
        parts = [s.lengths if dataset is None else s.lengths.filter(dataset=dataset)
                 for s in (first, second)]  # fmt: skip
        row = {"measure": "acceptance_length", "dataset": dataset, "position": None}
        rows.append(row | _compare_means(parts, "acceptance_length", num_prompts))
    shared = set(first.rows["position"]) & set(second.rows["position"])
    for position in (None, *sorted(shared)):
        parts = [s.rows if position is None else s.rows.filter(position=position)
                 for s in (first, second)]  # fmt: skip
        row = {"measure": "conditional", "dataset": None, "position": position}
        compared = _compare_means(parts, "accepted", num_prompts)
        if position is None and not same_k:
            undefined = dict.fromkeys(("difference", "low", "high", "distinguishable"))
            compared |= undefined | {"comparable": False}
        rows.append(row | compared)
    return pl.DataFrame(rows, schema=_ACCEPTANCE)


_ACCEPTANCE: dict[str, Any] = {
    "measure": pl.String, "dataset": pl.String, "position": pl.Int16, "a": pl.Float64,
    "b": pl.Float64, "difference": pl.Float64, "low": pl.Float64, "high": pl.Float64,
    "distinguishable": pl.Boolean, "n_prompts": pl.Int64, "paired": pl.Boolean, "n_a": pl.Int64,
    "n_b": pl.Int64, "comparable": pl.Boolean,
}  # fmt: skip


def _compare_means(parts: list[pl.DataFrame], column: str, num_prompts: int) -> dict[str, Any]:
    sides = [
        _mean(
            part[column].cast(pl.Float64).to_numpy(),
            part["prompt"].to_numpy().astype(np.int64),
            num_prompts,
        )
        for part in parts
    ]
    counts = {"n_a": len(parts[0]), "n_b": len(parts[1]), "comparable": True}
    return _difference(*sides) | counts


def _notes(evaluations: list[Evaluation]) -> list[Note]:
    return [
        replace(note, text=f"log {name}: {note.text}")
        for name, evaluation in zip("ab", evaluations, strict=True)
        for note in evaluation.notes
    ]
