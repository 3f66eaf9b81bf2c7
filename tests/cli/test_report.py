"""`report` as a user meets it: what it writes, prints and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome


@pytest.mark.slow
def test_report_writes_one_html_file(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("report", log, "--out", tmp_path / "report")
    assert found.code == 0, found.err
    assert "</html>" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.slow
def test_report_prints_markdown_and_writes_nothing(
    call: Callable[..., Outcome],
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report_built: tuple[dict[str, Any], dict[str, str]],
) -> None:
    """The report is one that is there: only what becomes of it is asked here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("draftlab.reporting.render.make_report", lambda *_, **__: report_built)
    found = call("report", log, "--markdown")
    assert found.code == 0, found.err
    assert found.out.startswith("## Acceptance prediction: ")
    assert "wrote" not in found.out
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_report_sets_two_logs_side_by_side(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    found = call("report", log, "--compare", log, "--out", out, "--no-pdf")
    assert found.code == 0, found.err
    files = sorted(path.name for path in out.iterdir() if path.is_file())
    assert files == ["index.html", "report.json"]
    assert "What makes them incomparable" in (out / "index.html").read_text()
    wrong = call("report", log, "--compare", log, "--in-sample")
    assert wrong.code == 2
    assert "leave out --in-sample" in wrong.err
    wrong = call("report", log, "--compare", log, "--trimmed", log)
    assert wrong.code == 2
    assert "leave out --trimmed" in wrong.err


@pytest.mark.slow
def test_report_refuses_a_live_log_that_was_not_trimmed(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call(
        "report", log, "--trimmed", log, "--cost", "H100/llama-8b", "--out", tmp_path / "report"
    )
    assert found.code == 2
    assert "was not trimmed" in found.err
    assert not (tmp_path / "report" / "index.html").exists()


def test_a_report_names_a_cost_that_it_cannot_use(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("report", log, "--cost", "nonsense", "--out", tmp_path / "report")
    assert found.code == 2
    assert "nonsense" in found.err
    wrong = call("report", log, "--compare", log, "--cost", "nonsense", "--folds", 3)
    assert wrong.code == 2
    assert wrong.err.endswith("leave out --cost, --folds\n")
