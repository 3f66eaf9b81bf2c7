"""The PDF: every figure and table of the content, the date of the run, nothing cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from draftlab.reporting.blocks import walk
from draftlab.reporting.paper import plain_svg, render_pages

if TYPE_CHECKING:
    from pathlib import Path

Built = tuple[dict[str, Any], dict[str, str]]


def test_svgs_become_files_with_plain_colours(built: Built) -> None:
    _, svgs = built
    for svg in svgs.values():
        plain = plain_svg(svg)
        assert "var(" not in plain
        assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg"', plain)
        assert 'font-family="DejaVu Sans"' in plain


def test_the_pdf_numbers_every_figure_and_table(built: Built, folder: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    content, _ = built
    reader = pypdf.PdfReader(folder / "report.pdf")
    text = " ".join(page.extract_text() for page in reader.pages)
    blocks = list(walk(content["sections"]))
    figures = sum(block["kind"] == "figure" for block in blocks)
    tables = sum(block["kind"] == "table" and not block["folded"] for block in blocks)
    assert f"Figure {figures}." in text
    assert f"Figure {figures + 1}." not in text
    assert f"Table {tables}." in text
    assert f"1 / {len(reader.pages)}" in text
    assert reader.metadata.title == content["title"]
    assert str(reader.metadata.creation_date)[:10] == content["date"]


def test_pages_are_images_too(built: Built) -> None:
    pages = render_pages(*built, ppi=30)
    assert len(pages) > 5
    assert all(page.startswith(b"\x89PNG") for page in pages)
