"""The page: content as one HTML file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from draftlab.reporting.sections import blocks

if TYPE_CHECKING:
    from draftlab.reporting.sections.blocks import Block


def render_html(content: dict[str, Any], svgs: dict[str, str]) -> str:
    """Return the page for the content of report.json and its figures by id.

    The script sorts and copies tables; without it they stand as they are. The policy in the head
    allows this one script by its hash, and no request at all.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("draftlab", "reporting/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printed"] = blocks.printed
    environment.filters["csv_link"] = csv_link
    environment.filters["groups"] = _group_figures
    environment.filters["status"] = lambda status: _STATUS.get(status, "unsure")
    trusted = {name: Markup(svg) for name, svg in svgs.items()}  # noqa: S704 - escaped by to_svg
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("index.html.j2").render(
        report=content,
        svgs=trusted,
        style=Markup(_read("style.css")),  # noqa: S704 - ours
        script=Markup(script),  # noqa: S704 - ours
        digest=digest,
    )


def csv_link(block: Block) -> str:
    """Return a table's CSV as a data: URI."""
    return "data:text/csv;charset=utf-8," + quote(blocks.to_csv(block), safe=",:;=()/+-_.~")


_STATUS = {"holds": "holds", "agrees": "holds", "does not hold": "fails", "does not agree": "fails"}


def _group_figures(found: list[Block]) -> list[list[Block]]:
    """Return the blocks in groups: consecutive figures share a row."""
    return [list(group) for _, group in groupby(found, lambda block: block["kind"] == "figure")]


def _read(name: str) -> str:
    return files("draftlab.reporting").joinpath("templates", name).read_text(encoding="utf-8")
