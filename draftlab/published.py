"""Published tables as data, with their source, for columns next to our own.

Absolute values belong to their models, hardware and traffic; on other pairs only the
structure (order, sign, shape) can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

ARTICLE = "announcement article of vLLM PR #52228 (online-fitted acceptance estimator)"
PULL_REQUEST = "vLLM PR #52228, description"

Cell = str | float | bool | None


@dataclass(frozen=True)
class PublishedTable:
    """One published table.

    Examples
    --------
    >>> PUBLISHED["T1"].records()["logit_qmax"]["auc"]
    0.8336
    """

    name: str
    title: str
    source: str
    columns: tuple[str, ...]
    """The first one is the key of a row."""
    rows: tuple[tuple[Cell, ...], ...]

    def records(self) -> dict[str, dict[str, Cell]]:
        """Return the rows by key, each as a dict of its columns."""
        return {str(row[0]): dict(zip(self.columns, row, strict=True)) for row in self.rows}


_TABLES = (
    PublishedTable(
        "T1",
        "Features: about 4.5 million labelled drafts, DeepSeek-V4-Flash + DSpark, temperature 1, "
        "top-p 0.95, concurrency 64, adaptive verification off",
        ARTICLE,
        ("predictor", "lossless", "auc", "log_loss", "ece"),
        (
            ("log_qmax", True, 0.8069, 0.4813, 0.0592),
            ("top2_margin", True, 0.8156, 0.4437, 0.0105),
            ("entropy", True, 0.8321, 0.4577, 0.0638),
            ("loglog_qmax", True, 0.8336, 0.4289, 0.0103),
            ("logit_qmax", True, 0.8336, 0.4284, 0.0100),
            ("logit_q_sampled", False, 0.8553, 0.4040, 0.0152),
            ("loglog_q_sampled", False, 0.8554, 0.4075, 0.0193),
            ("qmax", True, 0.8259, 0.4880, 0.0736),
            ("confidence", True, 0.8191, 0.4449, 0.0052),
        ),
    ),
    PublishedTable(
        "T1_mean",
        "Raw qmax of T1: mean prediction and observed rate",
        ARTICLE,
        ("predictor", "mean_prediction", "rate"),
        (("qmax", 0.784, 0.723),),
    ),
    PublishedTable(
        "T1_own_slopes",
        "Cost of one slope for all positions compared with one per position, on the rows of T1",
        ARTICLE,
        ("predictor", "auc", "log_loss"),
        (("logit_qmax", 0.0002, 0.0003),),
    ),
    PublishedTable(
        "T2",
        "Estimator and trained head, all positions",
        ARTICLE,
        ("predictor", "auc", "log_loss", "ece"),
        (
            ("logit_qmax", 0.8336, 0.4284, 0.0100),
            ("confidence", 0.8191, 0.4449, 0.0052),
            ("difference", 0.0146, -0.0166, 0.0048),
        ),
    ),
    PublishedTable(
        "T3",
        "Estimator and trained head, without position 0",
        ARTICLE,
        ("predictor", "auc", "log_loss", "ece"),
        (
            ("logit_qmax", 0.8352, 0.4420, 0.0103),
            ("confidence", 0.8075, 0.4743, 0.0090),
            ("difference", 0.0278, -0.0323, 0.0013),
        ),
    ),
    PublishedTable(
        "T4",
        "Workloads of one pair (DeepSeek-V4-Flash + DSpark), logit_qmax fitted separately",
        ARTICLE,
        ("dataset", "acceptance", "mean_entropy", "slope", "intercept_0"),
        (
            ("gsm8k", 0.781, 0.562, 0.5365, 0.478),
            ("humaneval", 0.751, 0.669, 0.5135, 0.486),
            ("speed-bench 2k low entropy", 0.755, 0.703, 0.5087, 0.610),
            ("mt-bench", 0.714, 0.800, 0.5495, 0.181),
            ("speed-bench 2k high entropy", 0.642, 1.077, 0.5197, -0.089),
        ),
    ),
    PublishedTable(
        "T4_correlation",
        "Correlation of the coefficients of T4 with mean draft entropy over data sets",
        ARTICLE,
        ("coefficient", "r"),
        (("slope", -0.08), ("intercept_0", -0.89)),
    ),
    PublishedTable(
        "T5",
        "Pairs: slope of logit_qmax over refits, and the intercept of position 0",
        ARTICLE,
        ("pair", "num_positions", "slope", "slope_sd", "intercept_0"),
        (
            ("DeepSeek-V4-Flash + DSpark", 5, 0.5013, 0.0250, 0.279),
            ("MiMo-V2.5-Pro-FP4 + DFlash", 8, 0.5197, 0.0415, -1.000),
            ("Inkling-NVFP4 + MTP", 8, 0.5859, 0.0349, -0.572),
            ("Muse-Glimmer-30B + DFlash2", 7, 0.4450, 0.0323, 0.167),
        ),
    ),
    PublishedTable(
        "T5_pull_request",
        "Pairs as the pull request quotes them: the intercept is the mean over positions",
        PULL_REQUEST,
        ("pair", "drafting", "num_positions", "refits", "slope", "slope_sd",
         "mean_intercept", "mean_intercept_sd"),
        (
            ("DeepSeek-V4-Flash + DSpark", "probabilistic", 5, 35, 0.5013, 0.0250, -0.137, 0.208),
            ("DeepSeek-V4-Flash + DSpark, greedy", "greedy", 5, 38, 0.6482, 0.0371, -0.551, 0.125),
            ("MiMo-V2.5-Pro-FP4 + DFlash", "probabilistic", 8, 69, 0.5145, 0.0458, -0.923, 0.114),
            ("Muse-Glimmer-30B + DFlash2", "probabilistic", 7, 67, 0.4426, 0.0337, -0.158, 0.245),
            ("Inkling-NVFP4 + MTP8", "probabilistic", 8, 85, 0.5859, 0.0349, -0.614, 0.142),
            ("Kimi-K2.5 + DFlash", "probabilistic", 8, 21, 0.8261, 0.0629, -0.234, None),
        ),
    ),
    PublishedTable(
        "T6",
        "Gain of adaptive verification in tokens per second at fixed K, percent, and acceptance "
        "length with it off and on",
        PULL_REQUEST,
        ("workload", "tokens_per_second_gain", "acceptance_length_off", "acceptance_length_on"),
        (
            ("Muse-Glimmer-30B + DFlash2, low entropy", 15.3, 3.88, 3.61),
            ("Muse-Glimmer-30B + DFlash2, high entropy", 21.8, 2.65, 2.56),
            ("Kimi-K2.5 + DFlash, gsm8k second pass", 46.0, None, None),
        ),
    ),
)  # fmt: skip

PUBLISHED: dict[str, PublishedTable] = {table.name: table for table in _TABLES}
"""The published tables by name. Figures F1 and F2 came without numbers, T6 with these alone."""
