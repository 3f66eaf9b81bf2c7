"""`collect`: settings that cannot be run are refused before anything is loaded or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


def test_collect_refuses_what_it_cannot_run(call: Callable[..., Outcome], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "log")
    assert "unknown engine 'x'" in call("collect", "--engine", "x", *out).err
    assert "needs a --target" in call("collect", "--engine", "vllm", *out).err
    assert "needs --cost" in call("collect", "--adaptive-verification", "qmax", *out).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-p", 0), "top_p must be in (0, 1]"),
        (("--temperature", -1), "temperature must be >= 0"),
        (("--num-speculative-tokens", 0), "num_speculative_tokens must be >= 1"),
        (("--draft-sample-method", "beam"), "must be probabilistic or greedy"),
        (("--skip-layers", "a,b"), "wanted layers such as"),
        (("--target", "nowhere"), "no checkpoint there"),
        (("--prompts", "nowhere.txt"), "cannot be read"),
        (("--device", "cuda:7"), "no CUDA device"),
    ],
)
def test_bad_settings_of_collect(
    call: Callable[..., Outcome], tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    found = call("collect", "--out", tmp_path / "log", *arguments)
    assert found.code == 2
    assert message in found.err
    assert not (tmp_path / "log").exists()
