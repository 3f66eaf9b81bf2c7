"""Sections of an evaluation: predictors, published orders, positions, calibration, survival."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import polars as pl

from draftlab import published
from draftlab.predictors.baselines import ADOPTED
from draftlab.published import PUBLISHED
from draftlab.reporting import tables
from draftlab.reporting.figures import calibration as calibration_figures
from draftlab.reporting.figures import predictors as predictor_figures
from draftlab.reporting.labels import CellKey, format_number, label, of_cell
from draftlab.reporting.sections import blocks
from draftlab.reporting.sections.blocks import Block, Column
from draftlab.reporting.sections.findings import findings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from draftlab.studies.evaluate import Evaluation

_STATUSES = (
    ("holds", "holds", "hold"), ("does not hold", "does not hold", "do not hold"),
    ("undecided", "cannot be decided", "cannot be decided"), ("equal", "is a tie", "are ties"),
)  # fmt: skip
_COMPARED = ("auc", "log_loss", "ece")


def results(evaluation: Evaluation, cell: CellKey, name: str) -> Block:
    """Return the headline: every predictor in the published form."""
    headline = tables.headline_table(evaluation, cell)
    parts: list[Block] = []
    adopted = headline.filter(predictor=ADOPTED)
    if len(adopted):
        parts.append(blocks.text(_sum_up(adopted.row(0, named=True))))
    if headline["trimmed"].any():
        parts.append(
            blocks.text(
                "Adaptive verification chose which drafts were observed. Rows with a low "
                "prediction are missing, so these numbers cannot rank predictors.",
                "warning",
            )
        )
    parts += blocks.items(tables.describe(evaluation, cell)[1:])
    parts += blocks.table(
        f"{name}-headline",
        headline,
        f"How well each predictor tells which drafts will be accepted, on "
        f"{format_number(headline['n'][0])} drafts of all positions and workloads. ± is 95 % by "
        "prompt.",
        headline_columns(),
    )
    rate = format_number(headline["rate"][0])
    parts.append(
        blocks.text(
            "The published values come from other models, hardware and traffic "
            f"({published.ARTICLE}), so compare the ranking, not the values. Expected is the ECE "
            "that a perfectly calibrated predictor would show with this many rows. Predicted is "
            f"the mean prediction; compare it with the observed rate {rate}. Floors know no "
            "feature, ceilings know the target.",
            "small",
        )
    )
    parts += blocks.table(
        f"{name}-plugin",
        plugin_table(evaluation, cell, headline),
        "Metrics of the plugin, computed from held-out log-odds over all positions and workloads.",
    )
    return blocks.section(name, "Predictors", parts)


def plugin_table(evaluation: Evaluation, cell: CellKey, headline: pl.DataFrame) -> pl.DataFrame:
    """Return one row per predictor, as in the headline, and one column per metric of a plugin."""
    rows = of_cell(evaluation.plugin_metrics, cell).filter(scope="overall")
    by_metric = rows.pivot("metric", index=["predictor", "n"], values="value")
    names = headline.select("predictor", "name")
    return names.join(by_metric, on="predictor", maintain_order="left")


def headline_columns() -> list[Column]:
    """Return the printed columns of the published feature table."""
    return [
        Column("name", "predictor"),
        Column("lossless", "lossless"),
        Column("auc", "AUC", 4, "auc_low", "auc_high", "this run", half=True),
        Column("log_loss", "log-loss", 4, "log_loss_low", "log_loss_high", "this run", half=True),
        Column("ece", "ECE", over="this run"),
        Column("ece_null", "expected", over="this run"),
        Column("brier", "Brier", over="this run"),
        Column("mean_prediction", "predicted", over="this run"),
        Column("published_auc", "AUC", over="published", quiet=True),
        Column("published_log_loss", "log-loss", over="published", quiet=True),
        Column("published_ece", "ECE", over="published", quiet=True),
    ]


def _sum_up(adopted: Block) -> str:
    shown = {
        key: format_number(adopted[key])
        for key in ("n", "auc", "log_loss", "ece", "ece_null", "ece_null_high")
    }
    return (
        f"On {shown['n']} drafts, {adopted['name']}, the feature that vLLM adopted, reaches AUC "
        f"{shown['auc']}, log-loss {shown['log_loss']} and ECE {shown['ece']}. With this much data "
        f"even a perfectly calibrated predictor shows ECE {shown['ece_null']} (95 % of the time "
        f"below {shown['ece_null_high']}), or somewhat more, because rows of a prompt resemble one "
        "another."
    )


def orders(evaluation: Evaluation, cell: CellKey, name: str) -> Block:
    """Return which published orders hold here."""
    found = findings(evaluation, cell)
    if found.is_empty():
        nothing = blocks.text("None of the published comparisons has both its sides in this log.")
        return blocks.section(name, "What holds here", [nothing])
    counts = found["status"].value_counts()
    by_status = dict(counts.iter_rows())
    summary = _join(
        f"{count} {one if count == 1 else several}"
        for status, one, several in _STATUSES
        if (count := by_status.get(status, 0))
    )
    return blocks.section(
        name,
        "What holds here",
        [
            blocks.text(f"Of {len(found)} published comparisons, {summary} on this log."),
            *blocks.table(
                f"{name}-table",
                found,
                "One published comparison per row; better is the predictor that won there.",
                findings_columns(),
            ),
            blocks.text(
                "Numbers are compared as printed, to four digits. A comparison is undecided if the "
                "paired 95 % interval by prompt includes 0 (AUC, log-loss), if the ECEs differ by "
                "less than two calibrated predictors would show, or if there are too few workloads "
                "to establish a correlation (95 %, Fisher z).",
                "small",
            ),
        ],
    )


def _join(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def findings_columns() -> list[Column]:
    """Return the printed columns of the findings."""
    return [
        Column("claim", "published comparison"),
        Column("status", "here"),
        Column("here_better", "better", over="this run"),
        Column("here_worse", "worse", over="this run"),
        Column("published_better", "better", over="published", quiet=True),
        Column("published_worse", "worse", over="published", quiet=True),
    ]


def against(evaluation: Evaluation, cell: CellKey, name: str) -> Block | None:
    """Return the adopted feature minus every other predictor, paired (T2 and T3)."""
    parts: list[Block] = []
    for scope, title, theirs in (
        ("overall", "All positions (T2)", published_differences()),
        ("without_first", "Without position 0 (T3)", {"confidence": _published("T3")}),
    ):
        parts += blocks.table(
            f"{name}-{scope}",
            difference_table(evaluation, cell, scope, theirs),
            f"{title}: {label(ADOPTED).name} minus each other predictor, paired on the same "
            "drafts, with 95 % by prompt.",
            difference_columns(),
        )
    if not parts:
        return None
    parts.append(
        blocks.text(
            "A positive AUC and a negative log-loss speak for the adopted feature. If an interval "
            "leaves out 0, other prompts would show the difference too. ECE has no valid interval "
            "near 0. The published differences are those of T2 and T3 for the trained head, and "
            "differences of rows of T1 for the other features.",
            "small",
        )
    )
    return blocks.section(name, "The adopted feature compared with the others", parts)


Difference = dict[str, float]
"""By metric."""


def published_differences() -> dict[str, Difference]:
    """Return what was published of each predictor: the adopted feature minus it, all positions."""
    rows = PUBLISHED["T1"].records()
    own = rows[ADOPTED]
    found = {
        predictor: {
            metric: round(cast("float", own[metric]) - cast("float", row[metric]), 4)
            for metric in _COMPARED
        }
        for predictor, row in rows.items()
        if predictor != ADOPTED
    }
    return found | {"confidence": _published("T2")}  # rounded once, not twice


def _published(table: str) -> Difference:
    row = PUBLISHED[table].records()["difference"]
    return {metric: cast("float", row[metric]) for metric in _COMPARED}


def difference_table(
    evaluation: Evaluation, cell: CellKey, scope: str, theirs: Mapping[str, Difference]
) -> pl.DataFrame:
    """Return one row per other predictor: differences with intervals, and what was published.

    Returns
    -------
    DataFrame
        against, auc, auc_low, auc_high, log_loss, log_loss_low, log_loss_high, brier, brier_low,
        brier_high, ece, published_auc, published_log_loss, published_ece.
    """
    rows = of_cell(evaluation.differences, cell).filter(scope=scope, predictor_a=ADOPTED)
    out = []
    for other in rows["predictor_b"].unique(maintain_order=True):
        row: Block = {"against": label(other).name}
        for metric in ("auc", "log_loss", "brier", "ece"):
            found = rows.filter(predictor_b=other, metric=metric).row(0, named=True)
            row[metric] = found["difference"]
            if metric != "ece":
                row |= {f"{metric}_low": found["low"], f"{metric}_high": found["high"]}
        row |= {f"published_{m}": theirs.get(other, {}).get(m) for m in _COMPARED}
        out.append(row)
    types = {f"published_{metric}": pl.Float64 for metric in _COMPARED}
    return pl.DataFrame(out, schema_overrides=types if out else None)


def difference_columns() -> list[Column]:
    """Return the printed columns of `difference_table`."""
    return [
        Column("against", "minus"),
        Column("auc", "AUC", 4, "auc_low", "auc_high", "this run", signed=True),
        Column("log_loss", "log-loss", 4, "log_loss_low", "log_loss_high", "this run", signed=True),
        Column("ece", "ECE", over="this run", signed=True),
        *(
            Column(f"published_{key}", title, over="published", quiet=True, signed=True)
            for key, title in (("auc", "AUC"), ("log_loss", "log-loss"), ("ece", "ECE"))
        ),
    ]


def positions(evaluation: Evaluation, cell: CellKey, name: str) -> Block:
    """Return AUC and log-loss by position (F1)."""
    parts: list[Block] = []
    for drawing in predictor_figures.DRAWINGS[:2]:
        parts += blocks.draw(drawing, name, evaluation, cell)
    headline = tables.headline_table(evaluation, cell)
    every = tables.by_position(evaluation, cell, headline["predictor"])
    parts += blocks.table(f"{name}-pivot", auc_by_position(every), "AUC by position (as in F1).")
    parts += blocks.table(
        f"{name}-table", every, "Every predictor, position by position.", folded=True
    )
    if column := evaluation.settings.get("by"):
        grades = tables.by_value(evaluation, cell)
        mine = grades.filter(predictor=ADOPTED)
        title = f"By {column.partition(':')[0].replace('_', ' ')}"
        parts += blocks.table(
            f"{name}-by", mine, f"{title}: {label(ADOPTED).name}, 95 % by prompt.", _BY
        )
        parts += blocks.table(f"{name}-by-table", grades, f"{title}: all predictors.", folded=True)
    return blocks.section(name, "By position", parts)


_BY = [
    Column("by", "value"),
    Column("n", "n"),
    Column("n_prompts", "prompts"),
    Column("rate", "acceptance"),
    Column("mean_prediction", "predicted"),
    Column("auc", "AUC", 4, "auc_low", "auc_high"),
    Column("log_loss", "log-loss", 4, "log_loss_low", "log_loss_high"),
    Column("ece", "ECE"),
    Column("ece_null", "exp."),
]


def auc_by_position(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per predictor and one column per position, from `tables.by_position`."""
    return rows.with_columns(at=pl.format("at {}", "position")).pivot(
        "at", index=["predictor", "name"], values="auc"
    )


def calibration(evaluation: Evaluation, cell: CellKey, name: str) -> Block:
    """Return reliability, scores by label and how ECE depends on its convention."""
    parts: list[Block] = []
    for drawing in calibration_figures.DRAWINGS:
        parts += blocks.draw(drawing, name, evaluation, cell)
    conventions = of_cell(evaluation.ece_conventions, cell).filter(view="conditional")
    wanted = calibration_figures.shown_reliability(evaluation)
    shown = conventions.filter(pl.col("predictor").is_in(wanted))
    names = pl.Series([label(p).name for p in shown["predictor"]], dtype=pl.String)
    parts += blocks.table(
        f"{name}-conventions",
        shown.with_columns(name=names).select(
            "predictor", "name", "bins", "n_bins", "value", "ece", "ece_null"
        ),
        "How ECE depends on its convention: equal-width or equal-mass bins, the mean prediction or "
        "the centre of the bin, or a smooth curve without bins.",
        folded=True,
    )
    return blocks.section(name, "Calibration", parts)


def survival(evaluation: Evaluation, cell: CellKey, name: str) -> Block | None:
    """Return the other view: whether everything up to a position was accepted."""
    rows = of_cell(evaluation.survival, cell).filter(scope="overall")
    if rows.is_empty():
        return None
    lengths = of_cell(evaluation.lengths, cell)
    parts: list[Block] = [
        blocks.text(
            "Survival is the chance that a draft and all before it are accepted. vLLM ranks drafts "
            "by it. These numbers do not compare with the conditional ones above."
        ),
        *blocks.table(
            f"{name}-grades",
            _named(rows).select(*_SURVIVAL),
            f"How well each predictor tells survival, on {format_number(rows['n'][0])} drafts that "
            "were sent, with 95 % by prompt.",
        ),
        *blocks.draw(calibration_figures.LENGTHS, name, evaluation, cell),
        *blocks.table(
            f"{name}-lengths-table",
            _named(lengths.with_columns(pl.col("dataset").fill_null("all"))).select(*_LENGTHS),
            "Accepted drafts per proposal: predicted (sum of survival probabilities) against "
            "observed.",
            folded=True,
        ),
    ]
    return blocks.section(name, "Survival", parts)


_SURVIVAL = (
    "predictor", "name", "lossless", "auc", "auc_low", "auc_high", "log_loss", "log_loss_low",
    "log_loss_high", "ece", "ece_null", "mean_prediction",
)  # fmt: skip
_LENGTHS = (
    "predictor", "name", "dataset", "n_proposals", "n_prompts", "expected_accepted",
    "observed_accepted", "bias", "bias_low", "bias_high", "correlation",
)  # fmt: skip


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    names = [calibration_figures.survival_label(predictor) for predictor in rows["predictor"]]
    return rows.with_columns(name=pl.Series(names, dtype=pl.String))


def _with_half(key: str, title: str, digits: int = 4) -> Column:
    return Column(key, title, digits, f"{key}_low", f"{key}_high", half=True)


_WORKLOADS = [
    Column("dataset", "workload"),
    Column("n", "n"),
    Column("n_prompts", "prompts"),
    Column("rate", "acceptance"),
    Column("mean_entropy", "H(q), nats"),
    _with_half("slope", "own slope"),
    _with_half("intercept_0", "own b0"),
    *(Column(metric, title) for metric, title in
      (("auc", "AUC"), ("log_loss", "log-loss"), ("ece", "ECE"))),
]  # fmt: skip


def acceptance(evaluation: Evaluation, cell: CellKey, name: str) -> Block:
    """Return acceptance and survival by position and workload, and the coefficients."""
    parts: list[Block] = []
    for drawing in predictor_figures.DRAWINGS[2:]:
        parts += blocks.draw(drawing, name, evaluation, cell)
    parts += blocks.table(
        f"{name}-workloads",
        tables.workload_table(evaluation, cell),
        "Acceptance by workload, the slope and intercept of position 0 (b0) of "
        f"{label(ADOPTED).name} fitted to this workload alone (± is 95 % by prompt), and the "
        "grades of the common fit on it.",
        _WORKLOADS,
    )
    parts += blocks.table(
        f"{name}-coefficients",
        tables.coefficient_table(evaluation, cell),
        "Coefficients fitted on all rows: logit p = slope × feature + b_k. ± is 95 % by prompt.",
        [
            Column("name", "predictor"),
            _with_half("slope", "slope"),
            *(_with_half(f"b_{k}", f"b{k}", 3) for k in range(cell.num_speculative_tokens)),
            Column("status", "fit"),
        ],
    )
    parts += blocks.table(
        f"{name}-exclusions",
        of_cell(evaluation.exclusions, cell),
        "Why rows were not graded.",
        folded=True,
    )
    return blocks.section(name, "Acceptance", parts)
