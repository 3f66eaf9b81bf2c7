"""The page in a real browser: nothing is fetched, nothing fails, tables sort and copy.

Needs playwright (`pip install playwright`) and a Chromium of the system; skipped without them.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[tuple[Any, list[str]]]:
    """Open the page; the list gathers console messages, errors and requests but the first."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    url = f"file://{folder}/index.html"
    page.on("request", lambda request: heard.append(request.url) if request.url != url else None)
    page.goto(url)
    yield page, heard
    page.close()


def test_the_page_says_nothing_and_fetches_nothing(opened: tuple[Any, list[str]]) -> None:
    page, heard = opened
    page.wait_for_timeout(200)
    assert heard == []
    assert page.evaluate("document.querySelectorAll('[role=img] > title').length") > 30


def test_a_click_on_a_title_sorts_and_a_second_turns(opened: tuple[Any, list[str]]) -> None:
    page, heard = opened
    head = "#cell-1-against-overall tr.titles th:nth-child(2)"
    found = []
    for wanted in ("ascending", "descending"):
        page.click(f"{head} button")
        assert page.get_attribute(head, "aria-sort") == wanted
        cells = page.locator("#cell-1-against-overall tbody td:nth-child(2)").all_inner_texts()
        found.append([float(cell.split()[0]) for cell in cells])
    assert found[0] == sorted(found[0])
    assert found[1] == sorted(found[1], reverse=True)
    assert heard == []


def test_sections_of_a_table_stay_apart_when_sorted(opened: tuple[Any, list[str]]) -> None:
    page, _ = opened
    bodies = page.locator("#cell-1-results-headline tbody")

    def sections() -> list[list[str]]:
        return [body.locator("th").all_inner_texts() for body in bodies.all()]

    before = sections()
    page.click("#cell-1-results-headline tr.titles th:nth-child(3) button")
    after = sections()
    assert [sorted(names) for names in after] == [sorted(names) for names in before]
    assert after[0] != before[0]
    kinds = [{kind for kind in ("floor", "ceiling") if kind in "".join(part)} for part in after]
    assert kinds == [set(), {"floor"}, {"ceiling"}]


def test_copy_gives_markdown(browser: Any, folder: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"file://{folder}/index.html")
    box = page.locator("div.table", has=page.locator("#cell-1-positions-pivot"))
    box.locator("button", has_text="copy as Markdown").click()
    page.wait_for_function("document.body.textContent.includes('copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    lines = copied.splitlines()
    assert lines[0] == "| predictor | at 0 | at 1 | at 2 | at 3 | at 4 |"
    assert lines[1] == "|:---|---:|---:|---:|---:|---:|"
    assert len(lines) == 2 + page.locator("#cell-1-positions-pivot tbody tr").count()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_never_scrolls_sideways(
    browser: Any, folder: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.goto(f"file://{folder}/index.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_tables_stand_without_a_script(browser: Any, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{folder}/index.html")
    assert page.locator("table button").count() == 0
    assert page.locator("#cell-1-results-headline tbody tr").count() > 10
    context.close()
