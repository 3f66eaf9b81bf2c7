"""The paper: content as a PDF, set by Typst from a template that reads the same JSON."""

from __future__ import annotations

import json
import re
import tempfile
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.reporting.sections import blocks

if TYPE_CHECKING:
    from draftlab.reporting.sections.blocks import Block


def write_pdf(content: dict[str, Any], svgs: dict[str, str], path: Path) -> None:
    """Write content and figures as a PDF.

    The same content gives the same bytes: its creation date is that of the run.
    """
    import typst

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        template = files("draftlab.reporting").joinpath("templates", "paper.typ")
        (folder / "paper.typ").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
        text = json.dumps(_printable(content), ensure_ascii=False)
        (folder / "content.json").write_text(text, encoding="utf-8")
        for figure, svg in svgs.items():
            (folder / f"{figure}.svg").write_text(plain_svg(svg), encoding="utf-8")
        compiled = typst.compile(
            folder / "paper.typ",
            root=folder,
            font_paths=[_fonts()],
            ignore_system_fonts=True,
            format="pdf",
            timestamp=_timestamp(content["date"]),
        )
    path.write_bytes(compiled)


def plain_svg(svg: str) -> str:
    """Return an SVG of the page as a file: plain colours, a font, and its namespaces."""
    plain = re.sub(r"var\(--[a-z]+, (#[0-9a-f]{6})\)", r"\1", svg)
    box = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', plain)
    assert box is not None
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{box[1]}pt" height="{box[2]}pt" font-family="DejaVu Sans" '
    )
    return plain.replace("<svg ", head, 1)


def _fonts() -> Path:
    """Return the folder of the font that the figures were laid out with."""
    import matplotlib as mpl

    return Path(mpl.get_data_path()) / "fonts" / "ttf"


def _timestamp(date: str) -> int:
    """Return the day of the run in seconds since 1970; 0 where it is unknown."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        return 0
    return int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp())


def _printable(content: dict[str, Any]) -> dict[str, Any]:
    """Return content with tables as text, and without what only a page can fold."""
    keys = ("title", "lede", "facts", "date", "provenance")
    return {key: content[key] for key in keys} | {
        "sections": [_print_section(part) for part in content["sections"]]
    }


def _print_section(part: Block) -> Block:
    return {
        "title": part["title"],
        "blocks": [_print_block(block) for block in part["blocks"] if not block.get("folded")],
        "sections": [_print_section(inner) for inner in part["sections"]],
    }


def _print_block(block: Block) -> Block:
    if block["kind"] == "figure":
        return {key: block[key] for key in ("kind", "id", "title", "caption", "how_to_read", "alt")}
    if block["kind"] == "table":
        return {"kind": "table", "caption": block["caption"]} | blocks.printed(block)
    return block
