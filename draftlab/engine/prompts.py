"""Prompts to collect with: the five suites of this project, or a user's own files."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

SUITES = ("copying", "arithmetic", "code", "chat", "fiction")
"""Our own workloads, from the most predictable answers to the least."""


@dataclass(frozen=True)
class Prompt:
    """A conversation to hold: the user's turns, asked one after the other."""

    id: str
    dataset: str
    turns: tuple[str, ...]


def load_suites(names: Iterable[str] = SUITES) -> list[Prompt]:
    """Load suites of this project, interleaved round-robin."""
    folder = files("draftlab") / "suites"
    return interleave(
        [
            _parse(name, (folder / f"{name}.jsonl").read_text(encoding="utf-8"), f"suite {name}")
            for name in names
        ]
    )


def load_prompts(paths: Iterable[str | Path]) -> list[Prompt]:
    """Load prompt files, one workload each, interleaved round-robin.

    A file holds JSON lines {"id", "prompt"} or {"question_id", "turns"} (MT-Bench), or plain
    text with a prompt a line. The workload is the file's name without its ending.

    Raises
    ------
    InputError
        A file is missing or empty, or a line is not of these forms.
    """
    suites = []
    for path in map(Path, paths):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read as text: {error}") from error
        suites.append(_parse(path.stem, text, str(path)))
    return interleave(suites)


def interleave(suites: list[list[Prompt]]) -> list[Prompt]:
    """Merge suites round-robin, so that every stretch of a run sees every workload."""
    rounds = itertools.zip_longest(*suites)
    return [prompt for prompts in rounds for prompt in prompts if prompt is not None]


def _parse(dataset: str, text: str, where: str) -> list[Prompt]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise InputError(f"{where}: holds no prompt")
    as_json = where.endswith((".jsonl", ".json")) or lines[0][1].lstrip().startswith("{")
    if not as_json and not where.startswith("suite "):
        return [Prompt(f"{dataset}/{n}", dataset, (line.strip(),)) for n, line in lines]
    return [_parse_line(dataset, line, f"{where}, line {n}") for n, line in lines]


def _parse_line(dataset: str, line: str, where: str) -> Prompt:
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: is not JSON: {error}") from error
    if isinstance(record, dict):
        turns = record.get("turns", [record.get("prompt")])
        name = record.get("id", record.get("question_id"))
        texts = isinstance(turns, list) and all(isinstance(t, str) and t for t in turns)
        if texts and turns and name is not None:
            return Prompt(str(name), dataset, tuple(turns))
    raise InputError(
        f'{where}: wanted {{"id": ..., "prompt": "..."}} or {{"question_id": ..., "turns": [...]}}'
    )
