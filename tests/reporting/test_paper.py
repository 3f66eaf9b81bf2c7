"""The PDF: every figure and table of the content, the date of the run, nothing cut."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from draftlab.reporting.paper import plain_svg, write_pdf
from draftlab.reporting.sections.blocks import walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from draftlab.reporting.sections.blocks import Block

pytestmark = pytest.mark.slow  # all read one whole report, which takes long to make

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


def captions(sections: list[Block]) -> Iterator[tuple[str, list[str]]]:
    """Yield every table's or figure's number with the text that must stand on its page."""
    counts = {"table": 0, "figure": 0}
    names = {"table": "Table", "figure": "Figure"}

    def visit(part: Block) -> Iterator[tuple[str, list[str]]]:
        near = [part["title"]]
        shown = [block for block in part["blocks"] if not block.get("folded")]
        for block, after in zip(shown, [*shown, {"kind": "end"}][1:], strict=True):
            if block["kind"] in counts:
                counts[block["kind"]] += 1
                short = len(block.get("rows", [])) <= 20
                if short and after.get("tone") == "small":
                    near.append(after["text"][:60])
                yield f"{names[block['kind']]} {counts[block['kind']]}.", near
                near = []
            elif block.get("tone") == "plain":
                near.append(block["text"][-60:])
        for inner in part["sections"]:
            yield from visit(inner)

    for part in sections:
        yield from visit(part)


@pytest.mark.parametrize("times", [1, 9, 18])
def test_what_leads_to_a_table_and_explains_it_stands_on_its_page(
    built: Built, tmp_path: Path, times: int
) -> None:
    """A longer lede moves where pages end."""
    pypdf = pytest.importorskip("pypdf")
    content, svgs = built
    moved = content | {"lede": " ".join([content["lede"]] * times)}
    write_pdf(moved, svgs, tmp_path / "report.pdf")
    reader = pypdf.PdfReader(tmp_path / "report.pdf")
    pages = ["".join(page.extract_text().split()) for page in reader.pages]
    asked = 0
    for caption, near in captions(content["sections"]):
        [page] = [page for page in pages if "".join(caption.split()) in page]
        for text in near:
            assert "".join(text.split()) in page, (caption, text)
            asked += 1
    assert asked > 20


def test_letters_are_never_too_small(folder: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    sizes = set()

    def note(text: str, now: list[float], matrix: list[float], _: Any, size: float) -> None:
        if text.strip():
            stretch = [math.sqrt(abs(m[0] * m[3] - m[1] * m[2])) for m in (now, matrix)]
            sizes.add(round(size * stretch[0] * stretch[1], 2))

    for page in pypdf.PdfReader(folder / "report.pdf").pages:
        page.extract_text(visitor_text=note)
    assert min(sizes) >= 6, sorted(sizes)
