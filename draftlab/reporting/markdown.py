"""Content as Markdown that fits a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from draftlab.reporting.sections import blocks
from draftlab.reporting.tables import to_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from draftlab.reporting.sections.blocks import Block

SHOWN = (
    *("results", "orders", "against", "positions", "setup", "predictors", "acceptance"),
    "live",
)
"""Last parts of the ids of the sections that a reviewer reads; the rest stays in the report."""


def render_markdown(content: dict[str, Any]) -> str:
    """Return headline, published orders, differences and AUC by position, and how to repeat them.

    Parameters
    ----------
    content : dict
        Of report.json, of one log or of a comparison.
    """
    lines = [f"## {escape(content['title'])}", "", escape(content["lede"]), ""]
    lines += [f"- {key}: {escape(value)}" for key, value in content["facts"]] + [""]
    for part in content["sections"]:
        lines += _section(part, 3)
    commands = "\n".join(content["commands"])
    lines += ["### Reproduce", "", "```bash", commands, "```", ""]
    return "\n".join(lines)


def _section(part: Block, level: int) -> Iterator[str]:
    inner = [line for each in part["sections"] for line in _section(each, level + 1)]
    shown = part["id"].rpartition("-")[2] in SHOWN
    if not shown and not inner:
        return
    yield from (f"{'#' * level} {escape(part['title'])}", "")
    if shown:
        for block in part["blocks"]:
            yield from _block(block)
    yield from inner


def _block(block: Block) -> Iterator[str]:
    if block["kind"] == "text":
        yield from (escape(block["text"]), "")
    elif block["kind"] == "items":
        yield from (f"- {escape(item)}" for item in block["items"])
        yield ""
    elif block["kind"] == "table" and not block["folded"]:
        shown = blocks.printed(block)
        titles = _titles(block)
        rows = [[escape(cell) for cell in row["cells"]] for row in shown["rows"]]
        yield from (escape(block["caption"]), "", to_markdown(titles, rows, shown["numeric"]), "")


def escape(text: str) -> str:
    r"""Return text that GitHub shows as it is: no tags, no emphasis, no link to its own issues.

    Examples
    --------
    >>> print(escape("<b> *x* _y_ q_sampled, vLLM PR #52228"))
    \<b> \*x\* \_y\_ q_sampled, vLLM PR vllm-project/vllm#52228
    """
    text = _MARKUP.sub(r"\\\g<0>", text)
    return text.replace("vLLM PR #", "vLLM PR vllm-project/vllm#")


_MARKUP = re.compile(r"[\\`*<]|(?<!\w)_|_(?!\w)")
"""An underscore inside a word is no emphasis."""


def _titles(block: Block) -> list[str]:
    """Return titles that tell columns apart without a line above them."""
    columns = block["columns"]
    published = [column["quiet"] and column["over"] for column in columns]
    return [
        f"{over} {column['title']}" if over else column["title"]
        for column, over in zip(columns, published, strict=True)
    ]
