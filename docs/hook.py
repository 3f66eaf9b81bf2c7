"""Hook of mkdocs: adds the pages of `make reproduce`, refuses a site that needs the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPRODUCTION = Path(__file__).parent.parent / "reports" / "reproduction"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `make reproduce`, which lie beside the documentation, to the site."""
    from mkdocs.structure.files import File

    for path in sorted(REPRODUCTION.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        name = f"reproduction/{path.relative_to(REPRODUCTION).as_posix()}"
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lead links to these pages to where they are in the site."""
    return markdown.replace("../reports/reproduction/", "reproduction/")


_LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]*"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon))[^>]*"
    r"\bhref=[\"']?(?:https?:)?//[^\"'> ]*"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^\"') ]*",
    re.IGNORECASE,
)


def remote_loads(text: str) -> list[str]:
    """Return what a page or style sheet would load from another server; links do not load."""
    return _LOADS.findall(text)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that needs the network."""
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        loads = remote_loads(path.read_text(encoding="utf-8"))
        if loads:
            raise RuntimeError(f"{path.relative_to(site)} loads from the network: {loads[0]}")
