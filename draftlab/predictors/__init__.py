"""Predictors of conditional acceptance: fits and baselines. They see arrays, never a path."""
