"""Sections of the report: results in, blocks out."""
