"""Grading: from the rows of a log to fits, metrics and intervals that every study shares."""
