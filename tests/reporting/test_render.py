"""The report: strict JSON, one sound page that fetches nothing, the same page every time."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from draftlab.evaluation import evaluate
from draftlab.log.reader import open_log
from draftlab.replaying import replay
from draftlab.reporting.render import build_report, render_html, report
from draftlab.reporting.replays import REPLAY_DRAWINGS
from draftlab.synth import synth_log
from tests.reporting.conftest import HOSTILE, write_head_run

if TYPE_CHECKING:
    from pathlib import Path

    from draftlab.evaluation import Evaluation
    from draftlab.log.reader import DraftLog

MAX_BYTES = 1_500_000
VOID = {"meta", "link", "br", "hr", "img", "input", "col"}


class Page(HTMLParser):
    """Collects what the tests ask of a page, and refuses tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def attributes(self, name: str) -> list[str]:
        """Return every value of an attribute."""
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def folder(log: DraftLog, evaluation: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = report(log, tmp_path_factory.mktemp("out"), evaluation=evaluation)
    return index.parent


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (folder / "report.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return loaded


def test_files_are_whole(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "report.json"]
    assert (folder / "index.html").stat().st_size < MAX_BYTES


def test_json_holds_the_tables(content: dict[str, Any], evaluation: Evaluation) -> None:
    assert [cell["cell"]["run"] for cell in content["cells"]] == ["head", "plain"]
    head, plain = content["cells"]
    assert head["cell"]["num_speculative_tokens"] == 2
    wanted = evaluation.metrics.filter(run="plain", scope="overall")
    assert [row["auc"] for row in plain["tables"]["headline"]] == wanted["auc"].to_list()
    assert plain["tables"]["headline"][-1]["published_auc"] is None
    assert plain["figures"][0]["name"] == "auc-by-position"
    assert content["settings"]["folds"] == 5
    assert content["runs"][1]["facts"]["target"] == "synthetic target"


def test_page_prints_the_numbers(page: Page, evaluation: Evaluation) -> None:
    text = " ".join(page.text)
    for auc in evaluation.metrics.filter(scope="overall")["auc"]:
        assert f"{auc:.4f}" in text
    assert "0.8336" in text  # published
    assert "other models, hardware and traffic" in text


def test_page_fetches_nothing(page: Page, folder: Path) -> None:
    for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
        assert all(value.startswith("#") for value in page.attributes(name)), name
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "img"}
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text


def test_ids_are_unique_and_all_references_exist(page: Page, folder: Path) -> None:
    counts = Counter(page.attributes("id"))
    assert max(counts.values()) == 1
    wanted = {value[1:] for name in ("href", "xlink:href") for value in page.attributes(name)}
    for name in ("aria-labelledby", "aria-describedby"):
        wanted |= {part for value in page.attributes(name) for part in value.split()}
    text = (folder / "index.html").read_text(encoding="utf-8")
    wanted |= set(re.findall(r"url\(#([^)]*)\)", text))
    assert wanted <= set(counts)


def test_headings_start_at_one_and_skip_none(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_figure_has_a_name_and_a_caption(page: Page) -> None:
    svgs = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(svgs) == 12 + len(REPLAY_DRAWINGS)
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in svgs)
    counts = Counter(tag for tag, _ in page.tags)
    assert counts["figure"] == counts["figcaption"] == counts["svg"] == counts["desc"]
    assert sum("How to read." in data for data in page.text) == counts["figure"]


def test_hostile_names_are_text(page: Page, folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert any(HOSTILE in data for data in page.text)


def test_two_renders_are_equal(
    log: DraftLog, evaluation: Evaluation, folder: Path, tmp_path: Path
) -> None:
    index = report(log, tmp_path, evaluation=evaluation)
    for name in ("index.html", "report.json"):
        assert (index.parent / name).read_bytes() == (folder / name).read_bytes()


def test_page_names_no_folder_of_this_machine(folder: Path, log: DraftLog) -> None:
    where = log.runs[0].path.rsplit("/", 1)[0]
    for name in ("index.html", "report.json"):
        assert where not in (folder / name).read_text(encoding="utf-8")


def test_undefined_numbers_become_null_and_a_dash(log: DraftLog, evaluation: Evaluation) -> None:
    undefined = evaluation.metrics.with_columns(auc=pl.lit(float("nan")))
    content, svgs = build_report(log, replace(evaluation, metrics=undefined), replay(log))
    json.dumps(content, allow_nan=False)
    assert content["cells"][0]["tables"]["headline"][0]["auc"] is None
    text = render_html(content, svgs)
    assert ">–</td>" in text
    assert ">nan<" not in text.lower()
    assert ">None<" not in text


def test_report_evaluates_by_itself(tmp_path: Path) -> None:
    run = synth_log(tmp_path, num_requests=20)
    index = report(run, tmp_path / "out", in_sample=True)
    content = json.loads((index.parent / "report.json").read_text(encoding="utf-8"))
    assert content["settings"]["in_sample"] is True
    assert content["commands"][-1].endswith("--in-sample --out report")
    assert "in sample" in index.read_text(encoding="utf-8")


def test_a_setting_without_an_option_is_reproduced_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = synth_log("log", num_requests=20)
    log = open_log(run)
    result = evaluate(log, folds=3, predictors=["logit_qmax", "constant"])
    content, _ = build_report(log, result, replay(log))
    program, flag, code = shlex.split(content["commands"][-1])
    assert (program, flag) == ("python", "-c")
    exec(compile(code, "command", "exec"), {})
    again = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert again["settings"] == content["settings"]
    assert again["cells"] == content["cells"]


def test_predictors_that_leave_tables_empty(tmp_path: Path) -> None:
    run = synth_log(tmp_path, num_requests=20)
    log = open_log(run)
    index = report(log, tmp_path / "out", evaluation=evaluate(log, predictors=["constant"]))
    text = index.read_text(encoding="utf-8")
    Page(text)
    assert "None of the published comparisons" in text


def test_a_damaged_log_says_so(tmp_path: Path) -> None:
    run = write_head_run(tmp_path)
    (run / "steps" / "part-00007.parquet").write_bytes(b"torn")
    index = report(run, tmp_path / "out")
    text = index.read_text(encoding="utf-8")
    assert "DL002" in text
    assert "head/steps/part-00007.parquet" in text
    assert str(tmp_path) not in text
