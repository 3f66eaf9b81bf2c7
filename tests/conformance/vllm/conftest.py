"""What pytest leaves alone here."""

from __future__ import annotations

collect_ignore = ["site"]
"""Imported by Python itself at its start, and only in the environment of run.py."""
