"""Metrics of binary predictions: arrays in, Python floats out; no files, no printing.

``y`` is the label (accepted or not): drop unobserved positions before calling. ``score`` and
``logit`` are log-odds, ``prob`` is a probability; the caller says which by the function that
they call, nothing is guessed from the range of the values.
"""

from draftlab.metrics.arrays import check_prob, check_rows, correlation, divide, sum_by
from draftlab.metrics.calibration import (
    NUM_BINS,
    Bins,
    BrierParts,
    EceNull,
    Reliability,
    Value,
    bin_edges,
    bin_index,
    brier_decomposition,
    brier_parts_of_bins,
    ece,
    ece_and_null,
    ece_debiased,
    ece_debiased_of_bins,
    ece_null,
    ece_null_of_bins,
    ece_of_bins,
    reliability,
)
from draftlab.metrics.intervals import (
    LEVEL,
    Interval,
    auc_influence,
    auc_interval,
    bounded,
    half_width,
    mean_interval,
    ratio_influence,
)
from draftlab.metrics.ranking import auc, row_pairs, row_wins
from draftlab.metrics.scores import brier, log_loss, log_loss_from_prob, probability, row_log_loss
from draftlab.metrics.smooth import SmoothCurve, smooth_curve, smooth_ece

__all__ = [
    "LEVEL",
    "NUM_BINS",
    "Bins",
    "BrierParts",
    "EceNull",
    "Interval",
    "Reliability",
    "SmoothCurve",
    "Value",
    "auc",
    "auc_influence",
    "auc_interval",
    "bin_edges",
    "bin_index",
    "bounded",
    "brier",
    "brier_decomposition",
    "brier_parts_of_bins",
    "check_prob",
    "check_rows",
    "correlation",
    "divide",
    "ece",
    "ece_and_null",
    "ece_debiased",
    "ece_debiased_of_bins",
    "ece_null",
    "ece_null_of_bins",
    "ece_of_bins",
    "half_width",
    "log_loss",
    "log_loss_from_prob",
    "mean_interval",
    "probability",
    "ratio_influence",
    "reliability",
    "row_log_loss",
    "row_pairs",
    "row_wins",
    "smooth_curve",
    "smooth_ece",
    "sum_by",
]
