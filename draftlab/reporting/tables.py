"""Tables of an evaluation in the published form, for a terminal, Markdown and the report.

Every table belongs to one cell (pair, drafting, K); cells are never pooled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.predictors.baselines import ADOPTED
from draftlab.published import PUBLISHED
from draftlab.reporting.labels import (
    BY_POSITION,
    MAX_OWN,
    METRICS,
    PUBLISHED_LABELS,
    SECTIONS,
    CellKey,
    cells,
    format_number,
    label,
    of_cell,
    own_predictors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from draftlab.studies.evaluate import Evaluation


_BY = (
    "predictor", "name", "by", "n", "n_prompts", "rate", "mean_prediction", "auc", "auc_low",
    "auc_high", "log_loss", "log_loss_low", "log_loss_high", "ece", "ece_null",
)  # fmt: skip
_ENDS = tuple(f"{name}_{end}" for name in ("auc", "log_loss") for end in ("low", "high"))


def headline_table(evaluation: Evaluation, cell: CellKey | None = None) -> pl.DataFrame:
    """Return the published feature table with our columns, one row per predictor.

    Parameters
    ----------
    evaluation : Evaluation
    cell : CellKey, optional
        Needed when the evaluation holds several.

    Returns
    -------
    DataFrame
        predictor, name, remark, section, lossless, fitted, auc, log_loss, ece, ece_null (ECE
        expected of perfect calibration at this n), ece_null_high (its upper 95 %), brier,
        mean_prediction, rate (observed), n, n_clamped (rows whose feature was beyond its limit),
        selected, published_auc, published_log_loss, published_ece, and the 95 % intervals by
        prompt: auc_low, auc_high, log_loss_low, log_loss_high.
    """
    chosen = _only(evaluation) if cell is None else cell
    rows = of_cell(evaluation.metrics, chosen).filter(scope="overall", view="conditional")
    names = rows["predictor"].to_list()
    labels = [label(name) for name in names]
    published = PUBLISHED["T1"].records()
    theirs = {
        f"published_{metric}": pl.Series(
            [published.get(name, {}).get(metric) for name in names], dtype=pl.Float64
        )
        for metric in METRICS
    }
    return rows.with_columns(
        name=pl.Series([entry.name for entry in labels], dtype=pl.String),
        remark=pl.Series([entry.remark for entry in labels], dtype=pl.String),
        section=pl.Series([entry.section for entry in labels], dtype=pl.String),
        rate=pl.col("n_accepted") / pl.col("n"),
        **theirs,
    ).select(
        "predictor", "name", "remark", "section", "lossless", "fitted", *METRICS, "ece_null",
        "ece_null_high", "brier", "mean_prediction", "rate", "n", "n_clamped", "trimmed",
        *theirs, *_ENDS,
    ).sort(pl.col("section").replace_strict(SECTIONS), maintain_order=True)  # fmt: skip


def by_value(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Return grades by the values of the column that was asked for; no row without one.

    Columns: predictor, name, by, n, n_prompts, rate (observed), mean_prediction, auc and log_loss
    with their 95 % intervals by prompt, ece, ece_null.
    """
    rows = of_cell(evaluation.metrics, cell).filter(scope="by", view="conditional")
    if rows.is_empty():
        return pl.DataFrame(schema=dict.fromkeys(_BY, pl.String))
    names = pl.Series([label(name).name for name in rows["predictor"]], dtype=pl.String)
    return rows.with_columns(name=names, rate=pl.col("n_accepted") / pl.col("n")).select(_BY)


def by_position(
    evaluation: Evaluation, cell: CellKey, predictors: Iterable[str] | None = None
) -> pl.DataFrame:
    """Return the metrics at each position, for the predictors that were graded.

    `BY_POSITION` and a few of a plugin, unless told.

    Returns
    -------
    DataFrame
        predictor, name, position, n, auc, log_loss, ece, auc_low, auc_high, log_loss_low,
        log_loss_high, in the order of ``predictors``.
    """
    own = own_predictors(evaluation)
    wanted = [*BY_POSITION, *own[:MAX_OWN]] if predictors is None else list(predictors)
    rows = of_cell(evaluation.metrics, cell).filter(scope="position", view="conditional")
    rows = rows.filter(pl.col("predictor").is_in(wanted))
    names = {predictor: label(predictor).name for predictor in wanted}
    return (
        rows.with_columns(
            name=pl.col("predictor").replace(names),
            order=pl.col("predictor").replace_strict(
                {name: i for i, name in enumerate(wanted)}, return_dtype=pl.Int32
            ),
        )
        .sort("order", "position")
        .select("predictor", "name", "position", "n", *METRICS, *_ENDS)
    )


_OWN_FIT = tuple(
    f"{name}{end}" for name in ("slope", "intercept_0") for end in ("", "_low", "_high")
)


def workload_table(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Return one row per dataset: acceptance, and the grades of the adopted feature.

    Returns
    -------
    DataFrame
        dataset, n, n_prompts, rate (conditional acceptance), mean_entropy (nats), slope and
        intercept_0 of the adopted feature fitted to this dataset alone, both with _low and _high
        (95 % by prompt), its auc, log_loss and ece under the common fit.
    """
    rows = of_cell(evaluation.metrics, cell).filter(scope="dataset", view="conditional")
    adopted = rows.filter(predictor=ADOPTED).select(
        "dataset", "n", "n_prompts", (pl.col("n_accepted") / pl.col("n")).alias("rate"), *METRICS
    )
    alone = (
        of_cell(evaluation.coefficients, cell)
        .filter(pl.col("dataset").is_not_null(), predictor=ADOPTED, position=0)
        .rename({f"intercept{end}": f"intercept_0{end}" for end in ("", "_low", "_high")})
    )
    return (
        adopted.join(_mean_entropy(evaluation, cell), on="dataset", how="left")
        .join(alone.select("dataset", *_OWN_FIT), on="dataset", how="left")
        .sort("rate", "dataset", descending=[True, False])
        .select("dataset", "n", "n_prompts", "rate", "mean_entropy", *_OWN_FIT, *METRICS)
    )


def coefficient_table(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Return one row per fitted feature: the fit on all rows.

    Returns
    -------
    DataFrame
        predictor, name, slope, slope_low and slope_high (95 % by prompt), one intercept column
        ``b_k`` per position, each with _low and _high, status.
    """
    rows = of_cell(evaluation.coefficients, cell).filter(pl.col("dataset").is_null())
    shown = [*PUBLISHED_LABELS, *own_predictors(evaluation)]
    rows = rows.filter(pl.col("predictor").is_in(shown))
    full = rows.filter(pl.col("fold").is_null())
    intercepts = [
        pl.col(f"intercept{end}").filter(pl.col("position") == k).first().alias(f"b_{k}{end}")
        for k in range(cell.num_speculative_tokens)
        for end in ("", "_low", "_high")
    ]
    table = full.group_by("predictor", maintain_order=True).agg(
        pl.col("slope", "slope_low", "slope_high").first(), *intercepts, pl.col("status").first()
    )
    names = pl.Series([label(name).name for name in table["predictor"]], dtype=pl.String)
    return table.select("predictor", names.alias("name"), pl.exclude("predictor"))


def markdown_table(frame: pl.DataFrame, digits: int = 4) -> str:
    r"""Return a frame as a Markdown table, numbers right-aligned.

    Examples
    --------
    >>> print(markdown_table(pl.DataFrame({"name": ["a|b"], "auc": [0.5]})))
    | name | auc |
    |:---|---:|
    | a\|b | 0.5000 |
    """
    numeric = [dtype.is_numeric() for dtype in frame.dtypes]
    rows = [[format_number(v, digits) for v in row] for row in frame.rows()]
    return to_markdown(frame.columns, rows, numeric)


def to_markdown(titles: list[str], rows: list[list[str]], numeric: list[bool]) -> str:
    """Return rows of text as a Markdown table, numeric columns right-aligned."""
    rule = "|" + "|".join("---:" if right else ":---" for right in numeric) + "|"
    return "\n".join([_markdown_row(titles), rule, *(_markdown_row(row) for row in rows)])


def describe(evaluation: Evaluation, cell: CellKey) -> list[str]:
    """Return what was run and how, as a few lines of plain text; the first names the cell."""
    table = headline_table(evaluation, cell)
    shown = table.row(0, named=True)
    groups = of_cell(evaluation.metrics, cell).filter(scope="overall")["n_prompts"].max()
    lines = [
        f"{cell.pair}, {cell.drafting} drafting, K = {cell.num_speculative_tokens}",
        f"run {cell.run}",
        f"{fit_style(evaluation)}; {format_number(shown['n'])} rows of {format_number(groups)} "
        f"prompts graded, acceptance {format_number(shown['rate'])}",
        f"not graded: {excluded_text(evaluation, cell)}",
        f"ECE: {evaluation.settings['ece']}",
    ]
    clamped = table.filter(pl.col("n_clamped") > 0)
    if len(clamped):
        counts = ", ".join(
            f"{format_number(n)} of {name}" for name, n in clamped["name", "n_clamped"].rows()
        )
        limit = format_number(evaluation.settings["log_odds_limit"], 0)
        lines.append(f"log-odds clamped at ±{limit}: {counts}")
    return lines


def fit_style(evaluation: Evaluation) -> str:
    """Return how predictors were fitted and graded, in words."""
    if evaluation.settings["in_sample"]:
        return "fitted and graded on the same rows (in sample)"
    return f"cross-fitted, {evaluation.settings['folds']} folds by prompt"


def excluded_text(evaluation: Evaluation, cell: CellKey) -> str:
    """Return the rows that were not graded, by reason."""
    rows = of_cell(evaluation.exclusions, cell)
    reasons = rows.filter(pl.col("reason") != "total")
    parts = [
        f"{format_number(row['rows'])} {row['reason'].replace('_', ' ')}"
        for row in reasons.rows(named=True)
    ]
    total = rows.filter(reason="total")["rows"].sum()
    several = f" ({format_number(total)} distinct rows; some match both)"
    return (", ".join(parts) or "none") + (several if reasons["rows"].sum() > total else "")


def calibration_line(evaluation: Evaluation, cell: CellKey) -> str:
    """Return the ECE that a perfectly calibrated adopted feature would show, in words."""
    table = headline_table(evaluation, cell)
    adopted = table.filter(predictor=ADOPTED)
    shown = (adopted if len(adopted) else table).row(0, named=True)
    null, high = format_number(shown["ece_null"]), format_number(shown["ece_null_high"])
    return (
        f"a perfectly calibrated {shown['name']} would show ECE {null} here, 95 % of the time "
        f"below {high}"
    )


def _only(evaluation: Evaluation) -> CellKey:
    found = cells(evaluation)
    if len(found) != 1:
        raise ValueError(f"wanted one of the cells {found}: they are not pooled")
    return found[0]


def _mean_entropy(evaluation: Evaluation, cell: CellKey) -> pl.DataFrame:
    """Return the mean entropy of each dataset over its graded rows, weighted by position."""
    rows = of_cell(evaluation.acceptance, cell).filter(pl.col("dataset").is_not_null())
    weighted = pl.col("mean_entropy").fill_nan(None) * pl.col("n_observed")
    return rows.group_by("dataset").agg(
        mean_entropy=weighted.sum()
        / pl.col("n_observed").filter(pl.col("mean_entropy").is_not_nan()).sum()
    )


def _markdown_row(entries: Iterable[str]) -> str:
    escaped = (entry.replace("|", "\\|").replace("\n", " ") for entry in entries)
    return "| " + " | ".join(escaped) + " |"
