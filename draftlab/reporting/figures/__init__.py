"""Figures: tables in, matplotlib out."""
