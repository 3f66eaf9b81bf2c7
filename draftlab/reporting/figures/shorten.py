"""Names cut to fit a figure, and still told apart."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def shorten(name: str, limit: int = 24) -> str:
    """Return a name that fits beside an axis."""
    return name if len(name) <= limit else name[: limit - 1] + "…"


def shorten_all(names: Sequence[str], limit: int) -> list[str]:
    """Return names that fit beside an axis and stay distinct, cut where they are alike.

    Examples
    --------
    >>> shorten_all(["code", "a long name of prose"], 12)
    ['code', 'a long name…']
    >>> shorten_all(["workload-of-low-entropy", "workload-of-high-entropy"], 13)
    ['…-low-entropy', '…high-entropy']
    """
    short = {name: shorten(name, limit) for name in names}
    for alike in _find_alike(short):
        short |= {name: _cut_middle(name, limit) for name in alike}
    for _ in range(2):  # a group may hold groups
        for alike in _find_alike(short):
            short |= {name: _cut_start(name, limit, alike) for name in alike}
    if _find_alike(short):
        short = {name: shorten(f"{i} {name}", limit) for i, name in enumerate(short, 1)}
    return [short[name] for name in names]


def _find_alike(short: dict[str, str]) -> list[list[str]]:
    """Return groups of names whose short forms are one and the same."""
    groups: dict[str, list[str]] = {}
    for name, form in short.items():
        groups.setdefault(form, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _cut_middle(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    tail = (limit - 1) // 2
    return name[: limit - 1 - tail] + "…" + name[-tail:]


def _cut_start(name: str, limit: int, alike: Sequence[str]) -> str:
    """Cut what a name begins with like the others, and more where only its end differs."""
    if len(name) <= limit:
        return name
    common = 0
    while len({other[: common + 1] for other in alike}) == 1:
        common += 1
    word = len(re.sub(r"\w+$", "", name[:common])) or common
    start = min(word, len(name) - limit + 1)
    return "…" + shorten(name[start:], limit - 1)
