"""Sections of what a log says about the model itself: workloads, pairs, transfer, learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from draftlab.published import PUBLISHED
from draftlab.reporting.figures import stability as stability_figures
from draftlab.reporting.labels import format_number, label, of_cell
from draftlab.reporting.sections import blocks
from draftlab.reporting.sections.blocks import Block, Column

if TYPE_CHECKING:
    from draftlab.reporting.labels import CellKey
    from draftlab.studies.stability.stability import Stability


def workloads(stability: Stability, cell: CellKey, name: str) -> Block | None:
    """Return T4: every workload fitted alone, and its correlation with draft entropy."""
    rows = of_cell(stability.workloads, cell)
    if rows.is_empty():
        return None
    correlations = of_cell(stability.workload_correlations, cell)
    theirs = {key: row["r"] for key, row in PUBLISHED["T4_correlation"].records().items()}
    published = [theirs.get(key) for key in correlations["coefficient"]]
    parts = [
        *blocks.table(
            f"{name}-table",
            rows,
            "Each workload of this pair fitted alone (as in T4). ± is 95 % by prompt.",
            _WORKLOAD,
        ),
        *blocks.table(
            f"{name}-published",
            pl.DataFrame(PUBLISHED["T4"].rows, schema=PUBLISHED["T4"].columns, orient="row"),
            f"Published: {PUBLISHED['T4'].title}.",
            [
                Column("dataset", "workload", quiet=True),
                Column("acceptance", "acceptance", quiet=True),
                Column("mean_entropy", "H(q), nats", quiet=True),
                Column("slope", "slope", quiet=True),
                Column("intercept_0", "b0", quiet=True),
            ],
        ),
        *blocks.table(
            f"{name}-correlations",
            correlations.with_columns(
                pl.col("coefficient").replace(_COEFFICIENTS),
                published_r=pl.Series(published, dtype=pl.Float64),
            ),
            "How coefficients correlate with the mean draft entropy over workloads.",
            [
                Column("coefficient", "coefficient"),
                Column("r", "r", digits=2),
                Column("n_datasets", "workloads"),
                Column("published_r", "published r", digits=2, quiet=True),
            ],
        ),
        *blocks.draw(stability_figures.CORRELATION, name, stability, cell),
    ]
    return blocks.section(name, "Workloads", parts)


_COEFFICIENTS = {"intercept_0": "intercept of position 0", "intercept_mean": "mean intercept"}
_WORKLOAD = [
    Column("dataset", "workload"),
    Column("n", "n"),
    Column("n_prompts", "prompts"),
    Column("acceptance", "acceptance"),
    Column("mean_entropy", "H(q), nats"),
    Column("slope", "slope", 4, "slope_low", "slope_high", half=True),
    Column("intercept_0", "b0", 4, "intercept_0_low", "intercept_0_high", half=True),
    Column("intercept_mean", "mean b"),
    Column("status", "fit"),
]


def stability(stability: Stability, cell: CellKey, name: str) -> Block:
    """Return T5, what one slope costs, transfer, learning and drift."""
    pairs = of_cell(stability.refit_spread, cell).with_columns(pair=pl.lit(cell.pair))
    theirs = PUBLISHED["T5"]
    own = PUBLISHED["T1_own_slopes"].records()["logit_qmax"]
    slopes = of_cell(stability.slopes, cell).filter(scope="overall")
    slopes = slopes.with_columns(pl.col("metric").replace(blocks.TITLES))
    parts: list[Block] = [
        *blocks.table(
            f"{name}-pairs",
            pairs,
            "Coefficients of this pair (as in T5), refitted on "
            f"{pairs['refit_kind'][0] if len(pairs) else 'blocks of steps'}. If sd exceeds se, "
            "they drift by more than sampling noise (by prompt).",
            _PAIR,
        ),
        *blocks.table(
            f"{name}-published",
            pl.DataFrame(theirs.rows, schema=theirs.columns, orient="row"),
            f"Published: {theirs.title}.",
            [
                Column("pair", "pair", quiet=True),
                Column("num_positions", "K", quiet=True),
                Column("slope", "slope", quiet=True),
                Column("slope_sd", "sd of slope", quiet=True),
                Column("intercept_0", "b0", quiet=True),
            ],
        ),
        *blocks.table(
            f"{name}-slopes",
            slopes,
            "What it costs to use one slope for all positions instead of one per position, with "
            f"95 % by prompt. Published: {own['auc']} AUC and {own['log_loss']} log-loss.",
            [
                Column("metric", "metric"),
                Column("shared", "one slope"),
                Column("own", "one per position"),
                Column("cost", "cost", 5, "cost_low", "cost_high", signed=True),
            ],
        ),
        *blocks.draw(stability_figures.TRANSFER, name, stability, cell),
        *blocks.draw(stability_figures.LEARNING, name, stability, cell),
        *blocks.draw(stability_figures.DRIFT, name, stability, cell),
        *blocks.table(
            f"{name}-drift-table",
            of_cell(stability.change, cell).with_columns(
                pl.col("position").cast(pl.String).fill_null("all")
            ),
            "How acceptance at equal features changed from the earlier to the later half of the "
            "log. changed: the change is significant after Holm's correction.",
            folded=True,
        ),
    ]
    return blocks.section(name, "Pairs, transfer and learning", parts)


_PAIR = [
    Column("pair", "pair"),
    Column("num_positions", "K"),
    Column("n", "n"),
    Column("slope", "slope"),
    Column("slope_sd", "sd of slope"),
    Column("slope_se", "se"),
    Column("intercept_0", "b0"),
    Column("intercept_0_sd", "sd of b0"),
    Column("intercept_0_se", "se"),
    Column("intercept_mean", "mean b"),
    Column("intercept_mean_sd", "sd of mean b"),
]


def achievable(stability: Stability, cell: CellKey, name: str) -> Block | None:
    """Return how far predictors and combinations go, lengths and second ranks."""
    several = of_cell(stability.feature_sets, cell)
    second = of_cell(stability.second_rank, cell)
    lengths = of_cell(stability.acceptance_lengths, cell).with_columns(
        pl.col("dataset").fill_null("all")
    )
    parts: list[Block] = [
        *blocks.draw(stability_figures.ACHIEVABLE, name, stability, cell),
        *blocks.table(
            f"{name}-several",
            several,
            f"Several features in one cross-fitted model. Positive gains are better than "
            f"{label('logit_qmax').name} alone; 95 % by prompt.",
            [
                Column("features", "features"),
                Column("lossless", "lossless"),
                Column("auc", "AUC"),
                Column("log_loss", "log-loss"),
                Column("ece", "ECE"),
                Column("auc_gain", "AUC gain", 4, "auc_gain_low", "auc_gain_high", signed=True),
                Column("log_loss_gain", "log-loss gain", 4, "log_loss_gain_low",
                       "log_loss_gain_high", signed=True),
            ],
        ),
        *blocks.table(
            f"{name}-lengths-table",
            lengths,
            "Acceptance length (tokens per verification), over all verifications and as the mean "
            "over requests. Both rates fall as K rises with the same drafter, so never rank K by "
            "them.",
            _LENGTH,
        ),
    ]  # fmt: skip
    if len(second):
        rate = second.filter(pl.col("dataset").is_null(), pl.col("position").is_null())
        parts.append(
            blocks.text(
                "When a draft was rejected, the target's top token was the drafter's second choice "
                f"in {format_number(100 * rate['second_rate'][0], 1)} % of the cases (95 % by "
                f"prompt: {format_number(100 * rate['second_rate_low'][0], 1)} to "
                f"{format_number(100 * rate['second_rate_high'][0], 1)} %)."
            )
        )
    return blocks.section(name, "What could be reached", parts)


_LENGTH = [
    Column("dataset", "workload"),
    Column("n_proposals", "proposals"),
    Column("n_requests", "requests"),
    Column("acceptance_length", "length", digits=3),
    Column("acceptance_length_by_request", "by request", digits=3),
    Column("accepted_per_verified", "accepted / verified"),
    Column("accepted_per_proposed", "accepted / proposed"),
]
