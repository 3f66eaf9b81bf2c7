"""Settings from the environment, workloads from ids, and what leaves the process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from draftlab.errors import InputError
from draftlab.hooks.settings import external_id, find_workload, read_settings, split_id

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults_are_private() -> None:
    settings = read_settings({"DRAFTLAB_LOG": "log"}, salt="s")
    assert not any((settings.raw_ids, settings.tokens, settings.target))
    assert settings.shadow
    assert settings.dataset == "live"


def test_a_switch_is_0_or_1() -> None:
    with pytest.raises(InputError, match="DRAFTLAB_TOKENS must be 0 or 1, got 'yes'"):
        read_settings({"DRAFTLAB_LOG": "log", "DRAFTLAB_TOKENS": "yes"}, salt="")


@pytest.mark.parametrize(
    ("internal", "external"),
    [("0-b59fc16f", "0"), ("a-b", "a-b"), ("_warmup_0_", "_warmup_0_")],
)
def test_the_random_suffix_is_not_the_callers(internal: str, external: str) -> None:
    assert external_id(internal) == external


@pytest.mark.parametrize(
    ("name", "workload", "group"),
    [
        ("gsm8k/17", "gsm8k", None),
        ("chatcmpl-gsm8k/17", "gsm8k", None),
        ("cmpl-gsm8k/17/2-0", "gsm8k", "17"),
        ("0_gsm8k/17", "gsm8k", None),
        ("2024_plan", None, None),
        ("/x", None, None),
    ],
)
def test_workload_and_group_from_an_id(name: str, workload: str | None, group: str | None) -> None:
    assert split_id(name) == (workload, group)


def test_the_mapping_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"chatcmpl-team-a-*": "chat", "7": "seven"}))
    settings = read_settings({"DRAFTLAB_LOG": "x", "DRAFTLAB_WORKLOADS": str(path)}, salt="")
    assert find_workload("chatcmpl-team-a-1", settings) == "chat"
    assert find_workload("7", settings) == "seven"
    assert find_workload("math/1", settings) == "math"
    assert find_workload("77", settings) == "live"


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', "{"])
def test_a_bad_mapping_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "workloads.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"workloads\.json"):
        read_settings({"DRAFTLAB_LOG": "x", "DRAFTLAB_WORKLOADS": str(path)}, salt="")


def test_hashes_depend_on_the_salt_and_on_nothing_else() -> None:
    one, two = (read_settings({"DRAFTLAB_LOG": "x"}, salt=s) for s in ("1", "2"))
    assert one.hash("id") == one.hash("id") != two.hash("id")
    assert one.hash_tokens([1, 2]) == one.hash_tokens([1, 2]) != one.hash_tokens([12])
    assert one.hash_tokens([1, 2]) != two.hash_tokens([1, 2])
    assert "1" not in repr(one).split("salt")[-1]
