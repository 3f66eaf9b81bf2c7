"""Run independent numpy work in threads: sorts and arithmetic release Python's lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 4
"""Each thread holds some ten arrays of all rows at once."""


def run_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of each item, in order; the first error is raised.

    Examples
    --------
    >>> run_threads(abs, [-1, 2])
    [1, 2]
    """
    workers = min(MAX_THREADS, os.cpu_count() or 1, len(items))
    if workers < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
