"""The page in a real browser: nothing is fetched, nothing fails, tables sort, copy and print.

Needs playwright (`pip install playwright`) and a Chromium of the system; skipped without them.
"""

from __future__ import annotations

import io
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.slow,  # the pages are those of a whole report
]


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


@pytest.mark.parametrize("name", ["results-headline", "orders-table", "workloads-table"])
def test_copied_titles_differ_and_cells_are_no_markup(
    browser: Any, folder: Path, name: str
) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"file://{folder}/index.html")
    shown = page.locator(f"#cell-1-{name}")
    page.locator("div.table", has=shown).locator("button", has_text="copy").click()
    page.wait_for_function("document.body.textContent.includes('copied')")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    titles, _, *rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines]
    assert len(set(titles)) == len(titles)
    if name == "results-headline":
        assert titles[2:5] == ["AUC", "log-loss", "ECE"]
        assert titles[-3:] == ["published AUC", "published log-loss", "published ECE"]
    assert not any(re.search(r"(?<!\\)[*_<>`~$]", cell) for row in rows for cell in row)
    copied = [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in rows]
    assert copied == shown.locator("tbody").evaluate_all(
        "parts => parts.flatMap(part => [...part.rows])"
        ".map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )
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


READABLE = """() => [...document.querySelectorAll("table")]
  .filter(table => !table.closest("details"))
  .filter(table => [...table.querySelectorAll("th, td")]
      .some(cell => cell.scrollWidth > cell.clientWidth + 1)
    || [...table.rows].some(row => row.getBoundingClientRect().height > 140))
  .map(table => table.id)"""
"""Tables with a cell that runs into the next, or a row of more than six lines."""


@pytest.mark.parametrize("width", [390, 760, 1200])
def test_tables_can_be_read_on_a_small_screen(browser: Any, folder: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(f"file://{folder}/index.html")
    assert page.evaluate(READABLE) == []
    page.close()


@pytest.mark.parametrize("width", [390, 1200])
def test_what_can_be_tapped_is_24_pixels(browser: Any, folder: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(f"file://{folder}/index.html")
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, a, summary")]
          .filter(one => one.checkVisibility())
          .map(one => [one.textContent, one.getBoundingClientRect()])
          .filter(([_, box]) => box.height < 24 || box.width < 24)
          .map(([text]) => text)"""
    )
    assert small == []
    page.close()


MARKED = """() => [...document.querySelectorAll("table")]
  .filter(table => !table.closest("details"))
  .map((table, n) => {
    const head = table.querySelector("tr.titles th");
    const rows = [...table.tBodies].flatMap(part => [...part.rows]);
    table.caption.firstChild.prepend(`caption${n}x `);
    (head.firstElementChild || head).textContent = `titles${n}x`;
    rows.forEach((row, m) => { row.cells[0].textContent = `row${n}y${m}x`; });
    return rows.length;
  })"""
"""Puts a word of its own into every caption, head and row; how many rows the tables have."""


def test_a_printed_table_keeps_its_caption_and_repeats_its_head(browser: Any, folder: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    page = browser.new_page()
    page.goto(f"file://{folder}/index.html")
    counts = page.evaluate(MARKED)
    broken = 0
    for pad in (0, 130, 260, 390):  # other rows meet the end of a page
        page.evaluate(f"document.body.style.setProperty('padding-top', '{pad}px', 'important')")
        reader = pypdf.PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))
        texts = ["".join(one.extract_text().split()) for one in reader.pages]

        def pages(word: str, texts: list[str] = texts) -> list[int]:
            return [number for number, text in enumerate(texts) if word in text]

        for n, count in enumerate(counts):
            rows = [pages(f"row{n}y{m}x") for m in range(count)]
            assert pages(f"caption{n}x") == rows[0] == rows[min(1, count - 1)], (pad, n)
            assert pages(f"titles{n}x") == sorted({number for [number] in rows}), (pad, n)
            broken += rows[0] != rows[-1]
    assert broken > 4
    page.close()


def test_nothing_is_wider_than_the_paper(browser: Any, folder: Path) -> None:
    """Chromium would shrink every page to the widest table."""
    page = browser.new_page(viewport={"width": 688, "height": 900})  # A4 less its margins
    page.emulate_media(media="print")
    page.goto(f"file://{folder}/index.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 688
    page.close()


def test_tables_stand_without_a_script(browser: Any, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{folder}/index.html")
    assert page.locator("table button").count() == 0
    assert page.locator("#cell-1-results-headline tbody tr").count() > 10
    context.close()
