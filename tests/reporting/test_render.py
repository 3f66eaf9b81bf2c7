"""The report: strict JSON, one sound page that fetches nothing, the same page every time."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import polars as pl
import pytest
from typer.testing import CliRunner

from draftlab.cli import app
from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.reporting.content import build_report
from draftlab.reporting.markdown import render_markdown
from draftlab.reporting.page import render_html
from draftlab.reporting.render import report, write_report
from draftlab.reporting.run_studies import Studies
from draftlab.reporting.sections.blocks import printed, walk
from draftlab.results import Note
from draftlab.studies.evaluate import evaluate
from draftlab.studies.inspect import inspect
from draftlab.studies.simulate.trimming_check import TrimmingCheck
from tests.conftest import write_head_run
from tests.logs import HOSTILE, proposal, write_log

if TYPE_CHECKING:
    from draftlab.log.reader import DraftLog
    from draftlab.reporting.content import Sections
    from draftlab.studies.evaluate import Evaluation

pytestmark = pytest.mark.slow  # all read one whole report, which takes long to make

MAX_BYTES = 3_000_000
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
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["index.html", "report.json", "report.pdf"]
    assert (folder / "index.html").stat().st_size < MAX_BYTES


def test_a_report_without_pdf_leaves_no_pdf_of_another(
    built: tuple[dict[str, Any], dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "report.pdf").write_bytes(b"of another log")
    index = write_report(*built, tmp_path, pdf=False)
    assert sorted(path.name for path in index.parent.iterdir()) == ["index.html", "report.json"]


def table(content: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the rows of a table by the end of its id."""
    [found] = [
        block["rows"]
        for block in walk(content["sections"])
        if block["kind"] == "table" and block["id"] == name
    ]
    rows: list[dict[str, Any]] = found
    return rows


def test_json_holds_the_tables(content: dict[str, Any], evaluation: Evaluation) -> None:
    assert [cell["run"] for cell in content["cells"]] == ["head", "plain"]
    assert content["cells"][0]["num_speculative_tokens"] == 2
    headline = table(content, "cell-1-results-headline")
    wanted = evaluation.metrics.filter(run="plain", scope="overall")
    assert [row["auc"] for row in headline] == pytest.approx(wanted["auc"].to_list(), rel=1e-9)
    assert headline[-1]["published_auc"] is None
    assert content["settings"]["folds"] == 5
    facts = {row["key"]: row for row in table(content, "runs-facts")}
    assert facts["target"]["plain"] == "synthetic target"


def test_published_differences_stand_beside_ours(content: dict[str, Any]) -> None:
    rows = {row["against"]: row for row in table(content, "cell-0-against-overall")}
    assert rows["trained head"]["published_auc"] == 0.0146  # of T2, rounded once
    assert rows["log(qmax)"]["published_auc"] == 0.0267  # 0.8336 - 0.8069, T1
    assert rows["log(qmax)"]["published_log_loss"] == -0.0529
    assert rows["constant rate"]["published_auc"] is None
    deep = {row["against"]: row for row in table(content, "cell-0-against-without_first")}
    assert deep["trained head"]["published_auc"] == 0.0278
    assert deep["log(qmax)"]["published_auc"] is None


def test_every_study_has_its_section(content: dict[str, Any]) -> None:
    ids = {part["id"] for part in content["sections"]}
    assert {"cell-0", "cell-1", "replay", "drift", "audit", "notes", "definitions"} <= ids
    inner = {part["id"] for part in content["sections"][1]["sections"]}
    assert inner == {
        f"cell-1-{name}"
        for name in (
            "results", "orders", "against", "positions", "calibration", "acceptance", "survival",
            "workloads", "stability", "achievable", "budgets",
        )
    }  # fmt: skip


def live_check(*, agrees: bool) -> TrimmingCheck:
    measures = ["acceptance_length", "verified_per_step", "step_ms"]
    table = pl.DataFrame(
        {
            "measure": measures,
            "simulated": [2.0, 4.0, 50.0],
            "measured": [2.02, 4.6, 80.0],
            "difference": [0.02, 0.6, 30.0],
            "standard_error": [0.01, 0.1, 1.0],
            "relative": [0.01, 0.15, 0.6],
            "agrees": [True, agrees, False],
        }
    )
    return TrimmingCheck(
        measures=table,
        policy="av/logit_qmax",
        concurrency=16,
        num_requests=256,
        num_prompts=250,
        notes=[Note("step_states", "rehearsed")],
        settings={"trimmed": "trimmed", "cost": "toy", "cost_source": "model"},
        provenance={},
    )


@pytest.mark.parametrize("agrees", [True, False])
def test_the_error_of_the_simulation_is_shown(
    studies: Studies, report_drawn: dict[str, Sections], agrees: bool
) -> None:
    shown = studies.results | {"trimming-check": live_check(agrees=agrees)}
    content, _ = build_report(Studies(shown), copy.deepcopy(report_drawn))
    [part] = [part for part in content["sections"] if part["id"] == "live"]
    said, table, notes = part["blocks"]
    assert said["text"].startswith("The simulation " + ("agrees" if agrees else "DISAGREES"))
    assert said["tone"] == ("plain" if agrees else "warning")
    rows = [row["cells"] for row in printed(table)["rows"]]
    assert rows[0] == [
        "acceptance length", "2.000", "2.020", "+0.020", "0.010", "+1.0", "agrees"
    ]  # fmt: skip
    assert rows[1][-1] == ("agrees" if agrees else "does not agree")
    assert rows[2][-1] == "–"  # only shown
    assert notes["items"] == ["rehearsed"]
    assert "Simulated against live" in render_markdown(content)


def test_page_prints_the_numbers(page: Page, evaluation: Evaluation) -> None:
    text = " ".join(page.text)
    for auc in evaluation.metrics.filter(scope="overall")["auc"]:
        assert f"{auc:.4f}" in text
    assert "0.8336" in text  # published
    assert "other models, hardware and traffic" in text


def test_page_fetches_nothing(page: Page, folder: Path) -> None:
    for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
        local = ("#", "data:text/csv;")
        assert all(value.startswith(local) for value in page.attributes(name)), name
    names = Counter(tag for tag, _ in page.tags)
    assert not set(names) & {"link", "iframe", "object", "embed", "img"}
    assert names["script"] == 1
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text


def test_ids_are_unique_and_all_references_exist(page: Page, folder: Path) -> None:
    counts = Counter(page.attributes("id"))
    assert max(counts.values()) == 1
    links = [value for name in ("href", "xlink:href") for value in page.attributes(name)]
    wanted = {value[1:] for value in links if value.startswith("#")}
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
    assert len(svgs) > 30
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in svgs)
    counts = Counter(tag for tag, _ in page.tags)
    assert counts["figure"] == counts["figcaption"] == counts["svg"] == counts["desc"]
    assert sum("How to read." in data for data in page.text) == counts["figure"]


def test_hostile_names_are_text(page: Page, folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert text.count("<script") == 1
    assert "<script>alert" not in text
    assert any(HOSTILE in data for data in page.text)


def test_csv_links_hold_the_rows_of_their_table(page: Page, content: dict[str, Any]) -> None:
    links = {attrs["download"]: attrs["href"] for tag, attrs in page.tags if "download" in attrs}
    blocks = {}
    for block in walk(content["sections"]):
        shown = block.get("table", block)
        if shown["kind"] == "table":
            blocks[f"{shown['id']}.csv"] = shown["rows"]
    assert set(links) == set(blocks)
    for name, link in links.items():
        kind, _, text = link.partition(",")
        assert kind == "data:text/csv;charset=utf-8"
        read = list(csv.DictReader(io.StringIO(unquote(text))))
        wanted = [{k: "" if v is None else str(v) for k, v in row.items()} for row in blocks[name]]
        assert read == wanted, name


def test_the_script_is_allowed_by_its_hash_and_nothing_else(folder: Path) -> None:
    import base64
    import hashlib

    text = (folder / "index.html").read_text(encoding="utf-8")
    [script] = re.findall(r"<script>(.*?)</script>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_colours_have_contrast(folder: Path) -> None:
    """Text on every background reaches the ratio 4.5 of WCAG AA, light and dark."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{([^}]*)\}", text)[:2]
    )
    for theme in (light, dark):
        for ink in ("ink", "muted", "good", "bad", "link"):
            for ground in ("page", "card", "mark"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of WCAG 2."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_markdown_for_a_pull_request_is_short_and_whole(content: dict[str, Any]) -> None:
    text = render_markdown(content)
    assert len(text) < 60_000  # GitHub cuts a comment at 65,536
    assert "### Reproduce" in text
    assert "| logit(qmax) (adopted by vLLM) |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")
    assert "nan" not in text.lower().split()


def test_no_label_of_a_figure_is_raw_tex(built: tuple[dict[str, Any], dict[str, str]]) -> None:
    assert [name for name, svg in built[1].items() if "mathdefault" in svg] == []


def test_two_renders_are_equal(studies: Studies, folder: Path, tmp_path: Path) -> None:
    again = write_report(*build_report(studies), tmp_path, pdf=True).parent
    for name in ("index.html", "report.json", "report.pdf"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_page_names_no_folder_of_this_machine(folder: Path, log: DraftLog) -> None:
    where = log.runs[0].path.rsplit("/", 1)[0]
    for name in ("index.html", "report.json"):
        assert where not in (folder / name).read_text(encoding="utf-8")


def test_undefined_numbers_become_null_and_a_dash(
    studies: Studies, report_drawn: dict[str, Sections]
) -> None:
    undefined = studies.evaluation.metrics.with_columns(auc=pl.lit(float("nan")))
    evaluation = replace(studies.evaluation, metrics=undefined)
    drawn = copy.deepcopy({n: part for n, part in report_drawn.items() if n != "evaluate"})
    content, svgs = build_report(Studies(studies.results | {"evaluate": evaluation}), drawn)
    json.dumps(content, allow_nan=False)
    assert table(content, "cell-0-results-headline")[0]["auc"] is None
    text = render_html(content, svgs)
    assert ">–</td>" in text
    assert ">nan<" not in text.lower()
    assert ">None<" not in text


def test_report_evaluates_by_itself(small_run: Path, tmp_path: Path) -> None:
    index = report(small_run, tmp_path / "out", in_sample=True, pdf=False)
    content = json.loads((index.parent / "report.json").read_text(encoding="utf-8"))
    assert content["settings"]["in_sample"] is True
    assert content["commands"][-1].endswith("--in-sample --out report")
    assert "in sample" in index.read_text(encoding="utf-8")


IDEA = """
import polars as pl
from draftlab.features import Feature
doubled = Feature("doubled", 2.0 * pl.col("entropy").cast(pl.Float64), "twice the entropy, nats")
FEATURES = {"doubled": doubled}
METRICS = {"spread": lambda accepted, log_odds: float(log_odds.std())}
"""


def test_the_printed_command_repeats_the_report(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").symlink_to(small_run)
    Path("idea.py").write_text(IDEA, encoding="utf-8")
    options = "--folds 3 --n-bins 12 --slope-per-position --plugin idea.py --cost B200/llama-8b"
    runner = CliRunner()
    done = runner.invoke(app, f"report log {options} --out first --no-pdf".split())
    assert done.exit_code == 0, done.output
    first = json.loads(Path("first/report.json").read_text(encoding="utf-8"))
    program, *words = shlex.split(first["commands"][-1])
    assert program == "draftlab"
    assert runner.invoke(app, [*words, "--no-pdf"]).exit_code == 0
    again = json.loads(Path("report/report.json").read_text(encoding="utf-8"))
    assert again["settings"] == first["settings"]
    assert again["commands"] == first["commands"]
    assert again["sections"] == first["sections"]
    assert "B200 llama-8b" in json.dumps(first["sections"])


def test_a_plugin_has_its_place_in_the_report(small_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "idea.py"
    path.write_text(IDEA, encoding="utf-8")
    log = open_log(small_run)
    results = {"evaluate": evaluate(log, plugin=path), "inspect": inspect(log)}
    content, svgs = build_report(Studies(results))
    headline = table(content, "cell-0-results-headline")
    sections = [row["section"] for row in headline]
    assert sections.index("published") < sections.index("other") < sections.index("floor")
    [own] = [row for row in headline if row["predictor"] == "doubled"]
    [entropy] = [row for row in headline if row["predictor"] == "entropy"]
    assert own["log_loss"] == pytest.approx(entropy["log_loss"], abs=1e-9)
    names = [row["predictor"] for row in table(content, "cell-0-results-plugin")]
    assert names == [row["predictor"] for row in headline]
    assert "doubled" in {
        row["predictor"] for row in table(content, "cell-0-acceptance-coefficients")
    }
    for figure in ("auc-by-position", "log-loss-by-position", "reliability", "scores"):
        [svg] = [svg for name, svg in svgs.items() if name.endswith(f"-{figure}")]
        assert "doubled" in svg, figure
    assert "idea.py" in content["commands"][-1]
    assert str(tmp_path) not in json.dumps(content["commands"])


def test_a_log_that_was_trimmed_live_needs_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [proposal(i, [i % 3 > 0, i % 2 > 0], request=i % 7) for i in range(40)]
    write_log(tmp_path / "log", rows, adaptive_verification="estimator")
    runner = CliRunner()
    refused = runner.invoke(app, ["report", "log", "--no-pdf"])
    assert isinstance(refused.exception, InputError)
    assert "--allow-trimmed" in str(refused.exception)
    done = runner.invoke(app, ["report", "log", "--allow-trimmed", "--no-pdf"])
    assert done.exit_code == 0, done.output
    content = json.loads(Path("report/report.json").read_text(encoding="utf-8"))
    assert content["commands"][-1].endswith("--allow-trimmed --out report")


def test_predictors_that_leave_tables_empty(small_run: Path) -> None:
    results = {
        "evaluate": evaluate(small_run, predictors="constant"),
        "inspect": inspect(small_run),
    }
    text = render_html(*build_report(Studies(results)))
    Page(text)
    assert "None of the published comparisons" in text


def test_a_damaged_log_says_so(tmp_path: Path) -> None:
    run = write_head_run(tmp_path)
    (run / "steps" / "part-00007.parquet").write_bytes(b"torn")
    index = report(run, tmp_path / "out", predictors=["logit_qmax"], pdf=False)
    text = index.read_text(encoding="utf-8")
    assert "DL002" in text
    assert "head/steps/part-00007.parquet" in text
    assert str(tmp_path) not in text
