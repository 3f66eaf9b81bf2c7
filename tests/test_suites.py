"""The prompt suites are complete, well formed and free of near-duplicates."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from itertools import combinations

import pytest

SUITES = ("copying", "arithmetic", "code", "chat", "fiction")
PER_SUITE = 64
TRAINING = 575  # prompts that only `train-head` reads
ALL = (*SUITES, "training")
MIN_WORDS, MAX_WORDS = 8, 120
MAX_SHARED = 0.10

FOLDER = files("draftlab") / "suites"


def load(suite: str) -> list[dict[str, str]]:
    text = (FOLDER / f"{suite}.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def ngrams(tokens: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


@pytest.fixture(scope="module")
def tokens() -> dict[str, list[str]]:
    """The words of every prompt of all suites, by prompt id."""
    return {row["id"]: words(row["prompt"]) for suite in ALL for row in load(suite)}


def test_every_suite_has_its_file_and_no_other_is_there() -> None:
    names = {entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".jsonl")}
    assert names == {f"{suite}.jsonl" for suite in ALL}


@pytest.mark.parametrize("suite", ALL)
def test_rows_are_numbered_and_hold_one_clean_prompt(suite: str) -> None:
    rows = load(suite)
    count = TRAINING if suite == "training" else PER_SUITE
    assert [row["id"] for row in rows] == [f"{suite}/{i:03d}" for i in range(count)]
    for row in rows:
        assert set(row) == {"id", "prompt"}
        assert row["prompt"].isascii()
        assert row["prompt"] == row["prompt"].strip()


def test_prompts_are_neither_short_nor_long(tokens: dict[str, list[str]]) -> None:
    assert len(tokens) == PER_SUITE * len(SUITES) + TRAINING
    bad = {key: len(t) for key, t in tokens.items() if not MIN_WORDS <= len(t) <= MAX_WORDS}
    assert not bad


@pytest.mark.slow
def test_no_two_prompts_share_many_5grams(tokens: dict[str, list[str]]) -> None:
    grams = {key: ngrams(t, 5) for key, t in tokens.items()}
    bad = [
        (a, b)
        for a, b in combinations(grams, 2)
        if len(grams[a] & grams[b]) > MAX_SHARED * min(len(grams[a]), len(grams[b]))
    ]
    assert not bad


def test_no_shared_8gram(tokens: dict[str, list[str]]) -> None:
    owner: dict[tuple[str, ...], str] = {}
    bad = [
        (owner[gram], key)
        for key, t in tokens.items()
        for gram in ngrams(t, 8)
        if owner.setdefault(gram, key) != key
    ]
    assert not bad


def test_first_five_words_differ(tokens: dict[str, list[str]]) -> None:
    owner: dict[tuple[str, ...], str] = {}
    bad = [
        (owner[start], key)
        for key, t in tokens.items()
        if owner.setdefault(start := tuple(t[:5]), key) != key
    ]
    assert not bad
