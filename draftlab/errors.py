"""The error that means: the input is at fault, and this sentence says how to mend it."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input or usage: what, where and how to mend it, in one sentence.

    The command line prints the sentence and exits with code 2; a library caller catches
    a ``ValueError``.
    """


class MissingExtraError(InputError):
    """A feature needs packages of an extra that are not installed."""
