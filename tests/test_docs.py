"""Documentation: commands parse, examples run, links lead somewhere, generated parts are fresh."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import typer.main

from draftlab import schema
from draftlab.cli import app, main
from draftlab.studies import RESULTS, result_class
from tests.paths import ROOT, SAMPLE_T1

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

DOCS = ROOT / "docs"
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md")
PAGES = sorted([*(ROOT / name for name in FILES), *DOCS.rglob("*.md")])
NOTEBOOK = DOCS / "tutorial.ipynb"
SMALL = SAMPLE_T1
"""Stands for the sample log where an example is run: what runs on one runs on the other."""
CHEAP = ("inspect", "evaluate", "stability", "calibrate", "replay", "simulate", "audit")
"""Commands that need no engine and take seconds."""
GROUP: Any = typer.main.get_command(app)


def load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script, DOCS / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate, hook = load("generate"), load("hook")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    return [str(block) for block in found]


def shell_lines(page: Path) -> list[str]:
    """Return the commands of a page: of its console blocks, and those that its outputs run."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    shown = re.findall(r"^<!-- generated: output (?:\d+ )?(.*?) -->$", page.read_text(), re.M)
    table = re.findall(r"\| `(draftlab .*?)` \|", page.read_text())
    return [line for line in [*text.splitlines(), *shown, *table] if line.strip()]


def commands() -> list[tuple[str, ...]]:
    """Return each different draftlab command of all pages once, as words."""
    lines = [line for page in PAGES for line in shell_lines(page)]
    words = [tuple(shlex.split(line, comments=True)) for line in lines]
    return sorted({w for w in words if w and w[0].removeprefix(".venv/bin/") == "draftlab"})


def runnable() -> list[tuple[str, ...]]:
    """Return those that are run: cheap, and on a log that comes with the repository or on none."""
    files = ("my_ideas.py", "cost.json")
    return [
        words
        for words in commands()
        if words[1] in CHEAP
        and (any(word.startswith("data/sample") for word in words) or words[1:] == ("audit",))
        and not set(files) & set(words)
    ]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to run examples in, with a small log in place of the sample logs."""
    (tmp_path / "data").mkdir()
    for log in ("sample", "sample-t1", "sample-skip-3"):
        (tmp_path / "data" / log).symlink_to(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run the command line; return its exit code, None or 0 for success."""
    monkeypatch.setattr(sys, "argv", ["draftlab", *arguments])
    try:
        main()
    except SystemExit as stop:
        return stop.code
    return 0


# --- commands


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_of_the_documentation_parses(words: tuple[str, ...]) -> None:
    command = GROUP.commands[words[1]]
    assert command.make_context(words[1], list(words[2:])).params


@pytest.mark.slow
@pytest.mark.parametrize("words", runnable(), ids=" ".join)
def test_cheap_commands_run(
    words: tuple[str, ...], workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run(words[1:], monkeypatch)


def test_the_documentation_shows_every_cheap_command_at_work() -> None:
    assert {words[1] for words in runnable()} == set(CHEAP)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_and_scripts_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    listed = re.search(r"^TABLES := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.M)
    targets |= set(listed[1].replace("\\", " ").split()) if listed else set()
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", text))
    named |= set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "console")), re.M))
    assert named <= targets
    for script in re.findall(r"python ((?:benchmarks|reproduction|tests|docs)/\S+?\.py)", text):
        assert (ROOT / script).is_file(), script


# --- Python


def python_blocks() -> list[tuple[Path, str]]:
    return [(page, block) for page in PAGES for block in blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), python_blocks(), ids=lambda v: getattr(v, "stem", ""))
def test_python_examples_run(page: Path, block: str, workplace: Path) -> None:
    if block.startswith("# needs vLLM"):
        block = "\n".join(line for line in block.splitlines() if line.startswith("from draftlab"))
        assert block
    scope: dict[str, object] = {}
    exec(compile(block, name(page), "exec"), scope)
    if page.name == "README.md":
        assert isinstance(scope["drafts"], pl.LazyFrame)


def test_the_writer_example_makes_a_sound_log(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = blocks(DOCS / "log-format.md", "python")
    exec(block, {})
    assert not run(["inspect", "mylog"], monkeypatch)
    assert "DL" not in capsys.readouterr().out


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return list(notebook["cells"])


@pytest.mark.slow
def test_the_notebook_runs_on_the_sample_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS)
    scope: dict[str, object] = {}
    for number, cell in enumerate(cells()):
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            code = "\n".join(line for line in lines if not line.startswith("%"))  # of Jupyter
            with pl.Config():  # what a cell sets of polars ends here
                exec(compile(code, f"cell {number}", "exec"), scope)


def test_the_notebook_is_committed_without_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


# --- links


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        aim = page if not path else page.parent / path
        assert aim.exists(), target
        if anchor:
            assert anchor in anchors(aim), target


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:draftlab|docs|data|tests|benchmarks|reports|reproduction)/[\w./-]+\.\w+)`",
        page.read_text(),
    )
    for path in named:
        assert (ROOT / path).exists(), path


# --- generated parts


def page_text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def generated() -> list[tuple[Path, Any]]:
    """Return every generated part with its page."""
    return [(page, part) for page in PAGES for part in generate.parts(page.read_text("utf-8"))]


STALE = "stale: run `python docs/generate.py` and commit what it writes"


@pytest.mark.parametrize(
    ("page", "part"),
    [
        pytest.param(
            *one,
            id=f"{one[1].kind} {one[1].argument}",
            marks=[pytest.mark.slow] if one[1].kind == "output" else [],  # it runs a command
        )
        for one in generated()
    ],
)
def test_generated_parts_are_fresh(page: Path, part: Any) -> None:
    made = part.make()
    if part.kind == "output":  # of floating point, whose last digit another machine may round
        assert alike(part.text, made), f"{name(page)}, {part.argument}: {STALE}"
    else:
        assert part.text == made, f"{name(page)}, {part.kind} {part.argument}: {STALE}"


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def alike(one: str, other: str) -> bool:
    """Whether two outputs differ in the last digit of decimals and in spaces at most."""
    texts = [[NUMBER.sub("0", line).split() for line in text.splitlines()] for text in (one, other)]
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
    return texts[0] == texts[1] and all(close(*pair) for pair in pairs)


def close(one: str, other: str) -> bool:
    decimals = len(one.partition(".")[2])
    apart = abs(float(one.replace(",", "")) - float(other.replace(",", "")))
    return apart < (1.5 * 10**-decimals if decimals else 0.5)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a 0.1234 1,000", "a  0.1235 1,000", True),
        ("a -0.0000", "a 0.0001", True),
        ("a 0.1234", "a 0.1236", False),
        ("a 1,000", "a 1,001", False),
        ("a 0.1", "b 0.1", False),
        ("a 0.1", "a 0.1\na 0.1", False),
        ("a 0.1", "a –", False),
    ],
)
def test_outputs_are_compared_by_their_digits(one: str, other: str, same: bool) -> None:
    assert alike(one, other) is same


def test_parts_are_written_in_place_and_twice_changes_nothing() -> None:
    page = (
        "# Costs\n\n<!-- generated: costs -->\n<!-- end -->\n\nOpen:\n<!-- generated: costs -->\n"
    )
    once = generate.fill(page)
    assert once.startswith("# Costs\n\n<!-- generated: costs -->\n\n- HARDWARE: `")
    assert once.endswith("`\n\n<!-- end -->\n\nOpen:\n<!-- generated: costs -->\n")
    assert generate.fill(once) == once


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_mark_is_known_and_has_its_end(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = generate.parts(text)
    assert text.count("<!-- generated: ") == text.count("<!-- end -->") == len(found)
    assert {part.kind for part in found} <= set(generate.KINDS)


@pytest.mark.parametrize("command", sorted(GROUP.commands))
def test_every_command_has_a_page_with_all_its_options(command: str) -> None:
    text = page_text(f"commands/{command}.md")
    for param in GROUP.commands[command].params:
        words = [*param.opts, *param.secondary_opts]
        if param.param_type_name == "argument":
            words = [(param.metavar or param.name).upper()]
        for word in words:
            assert word == "--help" or re.search(rf"[`/]{re.escape(word)}[`/ ]", text), word
    assert f"(commands/{command}.md)" in page_text("index.md")
    assert f"commands/{command}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((DOCS / "commands").glob("*.md")), ids=name)
def test_pages_of_commands_share_their_headings(page: Path) -> None:
    assert page.stem in GROUP.commands
    assert page.read_text(encoding="utf-8").startswith(f"# {page.stem}\n")
    assert f"## Options\n\n<!-- generated: options {page.stem} -->" in page.read_text()
    assert any(f" {page.stem}" in line for line in shell_lines(page))


def test_every_table_that_a_command_writes_is_explained() -> None:
    for command in RESULTS:
        text = page_text(f"commands/{command}.md")
        for table in result_class(command).meanings():
            assert f"**`{table}`**" in text, f"{command}: {table}"


def test_the_log_format_names_every_column_key_bit_and_check() -> None:
    from draftlab.log.checks import CHECKS

    text = page_text("log-format.md")
    rows = {line.split(" | ")[0].strip("| `"): line for line in text.splitlines() if "|" in line}
    tables = [*schema.TABLES.values(), schema.DISTRIBUTIONS, schema.RUN]
    for column in (column for table in tables for column in table):
        assert f"| `{column.name}` | {column.dtype} | {column.doc} |" in text, column.name
    for bit in schema.Excluded:
        assert f"`{bit.name}`".lower() in rows[str(int(bit))]
    for check in CHECKS:
        assert check.title in rows[check.code]


@pytest.mark.slow
def test_generated_outputs_hold_what_the_command_prints() -> None:
    shown = generate.show_output("3 draftlab inspect data/sample-t1").splitlines()
    assert shown[:2] == ["```text", "$ draftlab inspect data/sample-t1"]
    assert shown[2].startswith("run ")
    assert shown[-2:] == ["...", "```"]
    with pytest.raises(RuntimeError, match="exit code 2"):
        generate.show_output("draftlab inspect nowhere")


# --- no network, no numbers by hand


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ("<script src=assets/x.js></script>", 0),
        ('<link rel="stylesheet" href="https://fonts.example/css">', 1),
        ('<link href="//fonts.example" rel="preconnect">', 1),
        ('<a href="https://example.org">a link loads nothing</a>', 0),
        ('<link rel="canonical" href="https://example.org/">', 0),
        ("@font-face { src: url(https://fonts.example/a.woff2) }", 1),
        ('<img src="data:image/png;base64,AA">', 0),
    ],
)
def test_what_loads_from_the_network_is_seen(text: str, loads: int) -> None:
    assert len(hook.remote_loads(text)) == loads


MEASURED = re.compile(r"\b\d+\.\d{2,}\b|\b\d{1,3}(?:,\d{3})+\b|\b\d+(?:\.\d+)? ?%")
"""How results look: two decimals or more, thousands, percentages."""
CONVENTIONS = {"95 %", "0.05"}
"""The level of every interval, and an end of a grid."""
WITH_COMMAND = {"vllm.md": "benchmarks/hook_cost.py"}
"""Pages whose numbers come from a script that they name."""


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_no_result_is_written_by_hand(page: Path) -> None:
    text = generate.MARK.sub("", page.read_text(encoding="utf-8"))
    by_hand = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    found = set(MEASURED.findall(by_hand)) - CONVENTIONS
    if page.name in WITH_COMMAND:
        assert f"python {WITH_COMMAND[page.name]}" in text
    else:
        assert not found
