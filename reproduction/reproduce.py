"""Write every published table next to our own, with a verdict for each structural claim.

`make reproduce` and its parts run it:
python reproduction/reproduce.py [TARGET...] [--prompts FILE...]
Every figure in reports/reproduction/ and in the headline of the README comes from here; claims.py
holds the rules of the verdicts.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import polars as pl
from claims import CLAIMS, SPREAD, Claim, intercepts_spread_more, judge
from study import Study, synthetic

from draftlab import published
from draftlab.log.files import write_text
from draftlab.policies.cost import DEFAULT_MODEL
from draftlab.published import PUBLISHED
from draftlab.reporting.labels import CellKey, of_cell
from draftlab.reporting.render import report
from draftlab.reporting.tables import (
    by_position,
    describe,
    headline_table,
    markdown_table,
    workload_table,
)
from draftlab.studies.audit.audit import audit
from draftlab.studies.evaluate import Evaluation

ROOT = Path(__file__).parent.parent
OUT = ROOT / "reports" / "reproduction"
LOGS = {
    "default": ROOT / "data" / "sample",
    "temperature-1": ROOT / "data" / "sample-t1",
    "skip-3": ROOT / "data" / "sample-skip-3",
}
HEADLINE = ROOT / "reports" / "headline"
LOGS_OF_PROMPTS = ROOT / "reports" / "logs"
PROMPTS_LABELLED = 20_000
START, END = "<!-- headline:", "<!-- /headline -->"
_HIDDEN = ("run", "pair", "drafting")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(PAGES))
    parser.add_argument("--prompts", nargs="*", default=[], help="also on these prompt files")
    arguments = parser.parse_args()
    targets = arguments.targets or list(PAGES)
    unknown = [name for name in targets if name not in PAGES]
    if unknown:
        sys.exit(f"unknown target {unknown[0]!r}; known: {', '.join(PAGES)}")
    studies = [Study(name, log) for name, log in LOGS.items()]
    verdicts = [row for name in targets for row in write_page(name, studies, OUT)]
    if not arguments.targets:
        write_verdicts(verdicts, studies, OUT, _OF_SAMPLES)
        write_headline(studies[0])
        print(f"wrote {report(studies[0].log, HEADLINE, fresh=True).relative_to(ROOT)}")
    if arguments.prompts:
        write_prompts(arguments.prompts, targets, whole=not arguments.targets)


def write_prompts(files: list[str], targets: list[str], *, whole: bool) -> None:
    """Write the pages of a user's own prompts, in a folder named after the files."""
    name = "+".join(Path(file).stem for file in files)
    study = Study(name, collect_prompts(files))
    own = [target for target in targets if not PAGES[target].once]
    verdicts = [row for target in own for row in write_page(target, [study], OUT / name)]
    if whole:
        hashes = (hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] for file in files)
        described = ", ".join(
            f"{Path(file).name} (SHA-256 {digest}...)"
            for file, digest in zip(files, hashes, strict=True)
        )
        write_verdicts(verdicts, [study], OUT / name, f"Prompts: {described}.")


def collect_prompts(files: list[str]) -> Path:
    """Collect the embedded default on a user's prompt files, once, and return the log."""
    content = b"".join(Path(file).read_bytes() for file in files)
    log = LOGS_OF_PROMPTS / hashlib.sha256(content).hexdigest()[:12]
    if not log.exists():
        command = [sys.executable, "-m", "draftlab", "collect", "--out", str(log)]
        command += [part for file in files for part in ("--prompts", file)]
        subprocess.run([*command, "--max-labelled", str(PROMPTS_LABELLED)], check=True)
    return log


def write_page(name: str, studies: list[Study], folder: Path) -> list[dict[str, object]]:
    """Write one page, print its verdicts and return them."""
    page = PAGES[name]
    asked = studies[: 1 if page.once else None]
    if name == "replay-drift" and folder == OUT:
        return _write_with_synthetic(name, asked, folder)
    return _write(name, asked, studies, folder)


def _write_with_synthetic(name: str, studies: list[Study], folder: Path) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as scratch:
        return _write(name, [*studies, synthetic(Path(scratch))], studies, folder)


def _write(
    name: str, asked: list[Study], studies: list[Study], folder: Path
) -> list[dict[str, object]]:
    page = PAGES[name]
    claims = [claim for claim in CLAIMS if claim.item == name]
    rows = [judge(claim, study) for study in asked for claim in claims]
    if name == SPREAD.item and len(studies) > 1:
        spread = Claim(*SPREAD[:3], lambda _: intercepts_spread_more(studies))
        rows.append(judge(spread, studies[0]) | {"log": "all pairs"})
    lines = [f"# {page.title}", "", f"Published: {page.source}.", "", *page.published, ""]
    for study in asked:
        lines += [f"## {study.name}: {study.cell.pair}", "", *page.write(study), ""]
    lines += ["## Verdicts", "", verdict_table(rows), ""]
    save(folder / f"{name}.md", "\n".join(lines))
    for row in rows:
        print(f"  {row['log']}: {row['claim']}: {row['verdict']}")
    return rows


def save(path: Path, text: str) -> None:
    write_text(path, text)
    print(f"wrote {path.relative_to(ROOT)}")


def verdict_table(rows: list[dict[str, object]]) -> str:
    table = pl.DataFrame(rows, infer_schema_length=None).select(
        "log", "claim", "rule", "value", "low", "high", "verdict", "remark"
    )
    return markdown_table(table.with_columns(pl.col("value", "low", "high").cast(pl.Float64)))


_OF_SAMPLES = (
    "A user's own prompts get pages in a folder beside these: "
    "`make reproduce PROMPTS='a.jsonl b.jsonl'`."
)


def write_verdicts(
    rows: list[dict[str, object]], studies: list[Study], folder: Path, source: str
) -> None:
    """Write the table of all claims: one row a claim, one column a log."""
    table = pl.DataFrame(rows, infer_schema_length=None)
    wide = table.pivot("log", index=["item", "claim"], values="verdict").fill_null("")
    first = table.filter(log=studies[0].name)
    counts = first["verdict"].value_counts(sort=True).rows()
    lines = [
        "# Verdicts",
        "",
        "Structural claims of the published tables, judged by the rules of `reports/claims.py`. "
        "The pages beside this one hold the numbers, their intervals, and why a claim cannot be "
        f"tested. `make reproduce` writes them all. {source}",
        "",
        *(f"- {study.name}: {study.cell.pair}" for study in studies),
        f"- of {len(first)} claims on {studies[0].name}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts),
        "",
        markdown_table(wide),
        "",
    ]
    save(folder / "verdicts.md", "\n".join(lines))
    print("\n" + markdown_table(wide))


def write_headline(study: Study) -> None:
    readme = ROOT / "README.md"
    text = replace_headline(readme.read_text(encoding="utf-8"), study.evaluation, study.cell)
    write_text(readme, text)


def replace_headline(readme: str, evaluation: Evaluation, cell: CellKey) -> str:
    """Return the README with its headline table made from an evaluation."""
    before, rest = readme.split(START, 1)
    marker, rest = rest.split("-->\n", 1)
    after = rest.split(END, 1)[1]
    block = "\n".join(["", *_described(evaluation, cell), "", feature_table(evaluation, cell), ""])
    return f"{before}{START}{marker}-->\n{block}\n{END}{after}"


def feature_table(evaluation: Evaluation, cell: CellKey) -> str:
    """Return the feature table in the published form, as Markdown."""
    table = headline_table(evaluation, cell)
    shown = table.select(
        pl.col("name").alias("predictor"),
        "lossless",
        pl.col("auc").alias("AUC"),
        pl.col("log_loss").alias("log-loss"),
        pl.col("ece").alias("ECE"),
        pl.col("mean_prediction").alias("mean prediction"),
        pl.col("published_auc").alias("published AUC"),
        pl.col("published_log_loss").alias("published log-loss"),
        pl.col("published_ece").alias("published ECE"),
    )
    return markdown_table(shown)


def _described(evaluation: Evaluation, cell: CellKey) -> list[str]:
    return [f"- {line}" for line in describe(evaluation, cell)]


def _shown(name: str) -> list[str]:
    """Return a published table as Markdown, under its title."""
    table = PUBLISHED[name]
    frame = pl.DataFrame(table.rows, schema=list(table.columns), orient="row")
    return [f"{table.title}.", "", markdown_table(_filled(frame))]


def _filled(table: pl.DataFrame) -> pl.DataFrame:
    return table.drop(set(_HIDDEN) & set(table.columns)).with_columns(
        pl.col(pl.String).fill_null("")
    )


def _features(study: Study) -> list[str]:
    lines = []
    for title, evaluation in (("Cross-fitted", study.evaluation), ("In sample", study.in_sample)):
        lines += [f"### {title}", "", *_described(evaluation, study.cell), ""]
        lines += [feature_table(evaluation, study.cell), ""]
    costs = study.stability.slopes.filter(scope="overall")
    lines += ["### One slope against one per position", "", markdown_table(_filled(costs))]
    return lines


def _head(scope: str) -> Callable[[Study], list[str]]:
    def write(study: Study) -> list[str]:
        rows = of_cell(study.evaluation.differences, study.cell)
        table = rows.filter(scope=scope, predictor_b="confidence")
        if table.is_empty():
            return ["The log has no trained head."]
        return [markdown_table(_filled(table.drop("scope", "position")))]

    return write


def _positions(study: Study) -> list[str]:
    table = by_position(study.evaluation, study.cell).pivot("position", index="name", values="auc")
    rates = study.evaluation.acceptance.filter(pl.col("dataset").is_null())
    return [
        markdown_table(table),
        "",
        markdown_table(rates.select("position", "n_observed", "conditional_rate", "survival_rate")),
    ]


def _workloads(study: Study) -> list[str]:
    return [
        markdown_table(workload_table(study.evaluation, study.cell)),
        "",
        markdown_table(_filled(study.stability.workload_correlations)),
    ]


def _pairs(study: Study) -> list[str]:
    return [markdown_table(_filled(study.stability.refit_spread))]


_GAINS = (
    "dataset", "concurrency", "off_tokens_per_second", "tokens_per_second", "gain", "gain_low",
    "gain_high", "off_acceptance_length", "acceptance_length", "best_fixed_length", "captured",
)  # fmt: skip


def _gain(study: Study) -> list[str]:
    lines = []
    for title, simulation in (
        ("On the costs that this log's steps measured", study.measured),
        (f"On the cost model {DEFAULT_MODEL}: a model, not a measurement", study.modelled),
    ):
        rows = simulation.gains.filter(concurrency=64, predictor="online-vllm")
        lines += [f"### {title}", "", markdown_table(_filled(rows.select(_GAINS))), ""]
        lines += [f"- {note}" for note in simulation.notes] + [""]
    return lines


def _frontier(study: Study) -> list[str]:
    rows = study.modelled.frontier.filter(pl.col("dataset").is_null())
    table = rows.select(
        "policy", "predictor", "verify_length", "concurrency", "tokens_per_second",
        "tokens_per_second_per_request", "acceptance_length", "verified_per_step", "on_frontier",
    )  # fmt: skip
    return [f"On the cost model {DEFAULT_MODEL}: a model.", "", markdown_table(_filled(table), 2)]


def _lossless(_: Study) -> list[str]:
    checks = audit().checks.select(
        "kind", "name", "drafting", "lossless", "total_variation", "passed", "reason"
    )
    return [markdown_table(_filled(checks), 6)]


def _replay(study: Study) -> list[str]:
    columns = (
        "estimator", "n", "log_loss", "regret", "ece", "auc", "refits", "overshoots", "slope",
    )  # fmt: skip
    lines = [markdown_table(_filled(study.replay.summary.select(columns))), ""]
    lines += [f"- {note}" for note in study.replay.notes]
    scenario = study.drift.settings["scenario"]
    lines += ["", f"Drift, `{scenario}`:", "", markdown_table(_filled(study.drift.recovery))]
    return lines


class Page(NamedTuple):
    """What a target writes."""

    title: str
    source: str
    published: list[str]
    write: Callable[[Study], list[str]]
    once: bool = False
    """Of the first log only: the same for all."""


PAGES: dict[str, Page] = {
    "table-features": Page("Features", f"T1, {published.ARTICLE}", _shown("T1"), _features),
    "table-head": Page(
        "Estimator against trained head", f"T2, {published.ARTICLE}", _shown("T2"), _head("overall")
    ),
    "table-head-deep": Page(
        "Estimator against trained head without position 0",
        f"T3, {published.ARTICLE}",
        _shown("T3"),
        _head("without_first"),
    ),
    "figure-position-auc": Page(
        "AUC by position", f"F1, {published.ARTICLE}, without numbers", [], _positions
    ),
    "table-workloads": Page(
        "Workloads, fitted separately",
        f"T4, {published.ARTICLE}",
        [*_shown("T4"), "", *_shown("T4_correlation")],
        _workloads,
    ),
    "table-pairs": Page(
        "Pairs",
        f"T5, {published.ARTICLE} and {published.PULL_REQUEST}",
        [*_shown("T5"), "", *_shown("T5_pull_request")],
        _pairs,
    ),
    "table-av-gain": Page(
        "Gain of adaptive verification", f"T6, {published.PULL_REQUEST}", _shown("T6"), _gain
    ),
    "figure-frontier": Page(
        "Throughput against interactivity",
        f"F2, {published.ARTICLE}, without numbers",
        [],
        _frontier,
    ),
    "lossless": Page("Losslessness", f"A1, {published.ARTICLE}", [], _lossless, once=True),
    "replay-drift": Page(
        "Online estimators and abrupt change",
        "the update rule of vLLM PR #52228; its overshoot is ours to show",
        [],
        _replay,
    ),
}


if __name__ == "__main__":
    main()
