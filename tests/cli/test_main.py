"""The command line itself: help, version, and what ends in one sentence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from draftlab import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.cli.command import Outcome


HEAVY = ("torch", "transformers", "polars", "pyarrow", "sklearn", "scipy", "matplotlib", "numpy")
"""Each takes longer to import than the help takes to print."""


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    code = f"""
import sys
from draftlab.cli import main
sys.argv = ["draftlab", "--help"]
try:
    main()
finally:
    print("loaded:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    for name in ("collect", "inspect", "evaluate", "report", "demo"):
        assert name in out.stdout
    assert out.stdout.endswith("loaded: []\n")


def test_version(call: Callable[..., Outcome]) -> None:
    assert call("--version").out.strip() == f"draftlab {__version__}"


def test_what_the_disk_refuses_is_one_sentence(
    call: Callable[..., Outcome], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json")

    monkeypatch.setattr("draftlab.log.files.replace_file", full)
    found = call("inspect", log, "--out", tmp_path / "out")
    assert found.code == 2
    assert found.err == "draftlab: result.json: No space left on device\n"


def test_a_log_without_a_name_is_refused(call: Callable[..., Outcome]) -> None:
    found = call("inspect", "")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "without a name" in found.err
