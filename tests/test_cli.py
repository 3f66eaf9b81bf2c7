"""The command line as a user meets it: output, exit codes, one sentence for bad input."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from draftlab import __version__
from draftlab.cli import main
from draftlab.synth import synth_log
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = Path(__file__).parent.parent / "data" / "sample-t1"


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["draftlab", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [proposal(s, [True, s % 3 > 0], request=s % 7) for s in range(70)]
    rows += [proposal(s, [False, None], request=s % 7) for s in range(70, 100)]
    return write_log(tmp_path / "log", rows).parent


def part(log: Path) -> Path:
    [path] = log.glob("*/drafts/*.parquet")
    return path


def edit(log: Path, *expressions: pl.Expr) -> None:
    frame = pl.read_parquet(part(log)).with_columns(*expressions)
    frame.write_parquet(part(log))


def test_help_is_fast_and_lists_the_commands() -> None:
    command = [sys.executable, "-m", "draftlab", "--help"]
    subprocess.run(command, check=True, capture_output=True)  # bytecode is cached from here on
    started = time.monotonic()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # The goal is half a second on a quiet machine; the bound leaves room for a busy one.
    assert time.monotonic() - started < 2
    for name in ("collect", "inspect", "evaluate", "report", "demo"):
        assert name in out


def test_version(call: Callable[..., Outcome]) -> None:
    assert call("--version").out.strip() == f"draftlab {__version__}"


def test_inspect_writes_what_it_prints(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    outcome = call("inspect", str(log), "--out", str(tmp_path), "--json")
    written = json.loads((tmp_path / "inspect" / "result.json").read_text())
    assert written == json.loads(outcome.out)


def test_inspect_prints_workloads_and_findings(call: Callable[..., Outcome], log: Path) -> None:
    found = call("inspect", log)
    assert found.code == 0
    assert "all checks passed" in found.out
    summary = json.loads(call("inspect", log, "--json").out)
    assert [row["dataset"] for row in summary["runs"][0]["workloads"]] == ["even", "odd"]


def test_evaluate_prints_a_table_and_writes_results(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("evaluate", log, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "logit(qmax)" in found.out
    metrics = pl.read_parquet(tmp_path / "out" / "evaluate" / "metrics.parquet")
    assert {"predictor", "auc", "log_loss", "ece"} <= set(metrics.columns)
    result = json.loads(call("evaluate", log, "--json").out)
    assert len(result["metrics"]) == metrics.height


def test_report_writes_one_html_file(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("report", log, "--out", tmp_path / "report")
    assert found.code == 0, found.err
    assert "</html>" in (tmp_path / "report" / "index.html").read_text()


def test_report_prints_markdown_and_writes_nothing(
    call: Callable[..., Outcome], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = call("report", log, "--markdown")
    assert found.code == 0, found.err
    assert found.out.startswith("## Acceptance prediction: ")
    assert "wrote" not in found.out
    assert not (tmp_path / "report").exists()


def test_report_sets_two_logs_side_by_side(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    found = call("report", log, "--compare", log, "--out", out, "--no-pdf")
    assert found.code == 0, found.err
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "report.json"]
    assert "What makes them incomparable" in (out / "index.html").read_text()
    wrong = call("report", log, "--compare", log, "--in-sample")
    assert wrong.code == 2
    assert "leave out --in-sample" in wrong.err
    wrong = call("report", log, "--compare", log, "--live", log)
    assert wrong.code == 2
    assert "leave out --live" in wrong.err


def test_report_refuses_a_live_log_that_was_not_trimmed(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call(
        "report", log, "--live", log, "--cost", "H100/llama-8b", "--out", tmp_path / "report"
    )
    assert found.code == 2
    assert "was not trimmed" in found.err
    assert not (tmp_path / "report").exists()


def test_replay_prints_its_estimators(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("replay", log, "--refit-interval", 10, "--window", 10, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    for name in ("vllm", "step-limited", "running-rate", "offline"):
        assert name in found.out
    written = pl.read_parquet(tmp_path / "out" / "replay" / "coefficients.parquet")
    assert {"estimator", "refit", "slope", "intercept", "overshoot"} <= set(written.columns)
    summary = json.loads(call("replay", log, "--json", "--estimator", "vllm").out)["summary"]
    assert [row["estimator"] for row in summary] == ["vllm", "offline"]


def test_replay_runs_a_scenario(call: Callable[..., Outcome], log: Path) -> None:
    scenario = ("--scenario", "even@40 > odd@40", "--proposals-per-step", 8)
    found = call("replay", log, *scenario, "--refit-interval", 5)
    assert found.code == 0, found.err
    assert "recovery" in found.out
    assert call("replay", log, "--scenario", "even").code == 2
    assert call("replay", log, "--estimator", "vlm").code == 2


def test_replay_sweeps(call: Callable[..., Outcome], log: Path) -> None:
    sweep = ("--sweep", "refit-interval=5,20", "--sweep", "damping=0,50")
    rows = json.loads(call("replay", log, *sweep, "--json").out)["sweep"]
    assert [(r["refit_interval"], r["damping"]) for r in rows] == [
        (5, 0), (5, 50), (20, 0), (20, 50),
    ]  # fmt: skip
    assert call("replay", log, "--sweep", "speed=3").code == 2


def test_replay_sweeps_words_after_one_option_and_draws_them(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("replay", log, "--sweep", "refit-interval=5", "decay=0.5,1", "--out", tmp_path)
    assert found.code == 0, found.err
    assert "decayed, by the constants swept" in found.out
    assert (tmp_path / "replay" / "sweep.svg").read_text().startswith("<svg xmlns=")
    assert pl.read_parquet(tmp_path / "replay" / "sweep.parquet").height == 2


def test_replay_runs_the_default_scenario(call: Callable[..., Outcome], log: Path) -> None:
    found = call("replay", log, "--scenario", "default", "--refit-interval", 5)
    assert found.code == 0, found.err
    assert found.out.count("even") >= 2
    content = json.loads(call("replay", log, "--scenario", "even@9 > odd@9", "--json").out)
    assert content["settings"]["scenario"] == "even@9 > odd@9"


def test_structure_prints_and_writes(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("stability", log, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    for name in ("workloads", "pairs", "transfer", "acceptance lengths"):
        assert name in found.out
    assert (tmp_path / "out" / "stability" / "result.json").is_file()


def test_calibrate_writes_a_calibration(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("calibrate", log, "--source", "qmax", "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "temperatures" in found.out
    content = json.loads((tmp_path / "out" / "calibrate" / "calibration.json").read_text())
    assert content["temperatures"] == content["sts_temperatures"]


def test_simulate_marks_a_model_and_names_its_tables(
    call: Callable[..., Outcome], tmp_path: Path
) -> None:
    run = synth_log(tmp_path / "log", num_requests=40)
    arguments = ("--cost", "H100/llama-8b", "--predictor", "logit_qmax", "--concurrency", 64)
    found = call("simulate", run, *arguments, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "a model, not a measurement" in found.out
    assert (tmp_path / "out" / "simulate" / "frontier.parquet").is_file()
    wrong = call("simulate", run, "--cost", "X100/llama-8b")
    assert wrong.code == 2
    assert "no such file, and no model" in wrong.err


def test_audit_needs_no_log(call: Callable[..., Outcome]) -> None:
    found = call("audit", "--json")
    assert found.code == 0
    checks = json.loads(found.out)["checks"]
    assert {"proof", "joint", "derived"} <= {check["kind"] for check in checks}


def test_a_plugin_is_graded_beside_the_others(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import polars as pl\nfrom draftlab.features import Feature\n"
        "FEATURES = {'half': Feature('half', pl.col('logit_qmax').cast(pl.Float64) / 2, 'nats')}\n"
    )
    rows = json.loads(call("evaluate", log, "--plugin", plugin, "--json").out)["metrics"]
    assert "half" in {row["predictor"] for row in rows}
    assert call("evaluate", log, "--plugin", tmp_path / "absent.py").code == 2


def test_collect_refuses_what_it_cannot_run(call: Callable[..., Outcome], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "log")
    assert "unknown engine 'x'" in call("collect", "--engine", "x", *out).err
    assert "needs a --target" in call("collect", "--engine", "vllm", *out).err
    assert "needs --cost" in call("collect", "--adaptive-verification", "qmax", *out).err


def test_quiet_prints_nothing(call: Callable[..., Outcome], log: Path) -> None:
    assert call("evaluate", log, "--quiet").out == ""


def _remove(log: Path) -> None:
    shutil.rmtree(log)


def _empty(log: Path) -> None:
    shutil.rmtree(next(log.iterdir()))


def _csv(log: Path) -> None:
    part(log).write_text("request,step\n1,2\n")


def _drop_column(log: Path) -> None:
    pl.read_parquet(part(log)).drop("accepted").write_parquet(part(log))


def _wrong_type(log: Path) -> None:
    edit(log, pl.col("position").cast(pl.String))


def _no_labels(log: Path) -> None:
    edit(log, pl.lit(None, dtype=pl.Boolean).alias("accepted"))


def _one_class(log: Path) -> None:
    edit(log, pl.lit(value=True).alias("accepted"))


def _nan(log: Path) -> None:
    edit(log, pl.lit(float("nan"), dtype=pl.Float32).alias("entropy"))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_remove, "no such file or folder"),
        (_empty, "holds no draft log"),
        (_csv, "not a readable Parquet file"),
        (_drop_column, "lacks column accepted"),
        (_wrong_type, "column position has type"),
        (_no_labels, "labelled"),
        (_one_class, "accepted"),
        (_nan, "entropy"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_bad_input_is_one_sentence_and_exit_2(
    call: Callable[..., Outcome],
    log: Path,
    command: str,
    harm: Callable[[Path], None],
    message: str,
    tmp_path: Path,
) -> None:
    harm(log)
    found = call(command, log, "--out", tmp_path / "out")
    assert found.code == 2
    assert found.err.startswith("draftlab: ")
    assert found.err.count("\n") == 1
    assert message in found.err
    assert not (tmp_path / "out").exists()


def test_an_unknown_predictor_lists_the_known(call: Callable[..., Outcome], log: Path) -> None:
    found = call("evaluate", log, "--predictor", "logit_qmx")
    assert found.code == 2
    assert "unknown predictor 'logit_qmx'; known: log_qmax" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-p", 0), "top_p must be in (0, 1]"),
        (("--temperature", -1), "temperature must be >= 0"),
        (("--num-speculative-tokens", 0), "num_speculative_tokens must be >= 1"),
        (("--draft-sample-method", "beam"), "must be probabilistic or greedy"),
        (("--skip-layers", "a,b"), "wanted layers such as"),
        (("--target", "nowhere"), "no checkpoint there"),
        (("--prompts", "nowhere.txt"), "cannot be read"),
        (("--device", "cuda:7"), "no CUDA device"),
    ],
)
def test_bad_settings_of_collect(
    call: Callable[..., Outcome], tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    found = call("collect", "--out", tmp_path / "log", *arguments)
    assert found.code == 2
    assert message in found.err
    assert not (tmp_path / "log").exists()


def test_an_unreadable_part_is_named_and_the_rest_is_used(
    call: Callable[..., Outcome], log: Path
) -> None:
    broken = part(log).with_name("part-00001.parquet")
    broken.write_bytes(part(log).read_bytes()[:-50])
    found = call("evaluate", log)
    assert found.code == 1
    assert "logit(qmax)" in found.out
    assert "part-00001.parquet: not a readable Parquet file" in found.err
    assert call("evaluate", log, "--strict").code == 2
    assert call("inspect", log).code == 1


def test_simulate_compares_with_a_live_log(call: Callable[..., Outcome], tmp_path: Path) -> None:
    """The live one trimmed nothing, as its cost tells: the rehearsal does the same."""
    cost = tmp_path / "cost.json"
    flat = {"sample_batch_tokens": [1, 1000], "sample_steps_per_sec": [10.0, 10.0]}
    cost.write_text(json.dumps(flat | {"max_batch_tokens": 1000}))
    rows = [proposal(s, [True, s % 3 > 0], request=s % 7) for s in range(70)]
    off = write_log(tmp_path / "off", rows)
    live = write_log(tmp_path / "live", rows, adaptive_verification="qmax")
    for run in (off, live):
        [path] = run.glob("steps/*.parquet")
        pl.read_parquet(path).with_columns(num_requests=pl.lit(4, pl.Int32)).write_parquet(path)
    arguments = ("--cost", cost, "--predictor", "qmax", "--concurrency", 4, "--live", live)
    found = call("simulate", off, *arguments, "--out", tmp_path / "out")
    assert found.code == 0, found.err
    assert "live check: the simulation" in found.out
    written = json.loads((tmp_path / "out" / "simulate" / "live.json").read_text())
    assert (written["policy"], written["concurrency"]) == ("av/qmax", 4)
    sent = next(row for row in written["table"] if row["measure"] == "verified_per_step")
    assert sent["simulated"] == sent["measured"] == 2
    assert "live" in json.loads(call("simulate", off, *arguments, "--json").out)
    wrong = call("simulate", off, *arguments[:-1], off)
    assert wrong.code == 2
    assert "was not trimmed" in wrong.err


@pytest.mark.parametrize(
    "command", ["inspect", "evaluate", "stability", "calibrate", "replay", "simulate", "report"]
)
@pytest.mark.parametrize("inside", ["", "below"])
def test_an_out_that_cannot_be_made_is_refused_before_any_work(
    call: Callable[..., Outcome],
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    inside: str,
) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr("draftlab.log.reader.open_log", lambda *_, **__: pytest.fail("it worked"))
    found = call(command, log, "--out", tmp_path / "taken" / inside)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("draftlab: --out")
    assert "is a file; name" in found.err
    assert found.err.count("\n") == 1


def test_a_file_to_write_may_not_be_a_folder(call: Callable[..., Outcome], tmp_path: Path) -> None:
    found = call("profile", "--out", tmp_path)
    assert (found.code, found.err) == (2, f"draftlab: --out {tmp_path}: is a folder; name a file\n")


def test_what_the_disk_refuses_is_one_sentence(
    call: Callable[..., Outcome], log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json")

    monkeypatch.setattr("draftlab.log.files.replace_file", full)
    found = call("inspect", log, "--out", tmp_path / "out")
    assert found.code == 2
    assert found.err == "draftlab: result.json: No space left on device\n"


def test_a_run_that_was_cut_short_ends_with_the_code_for_loss(
    call: Callable[..., Outcome], log: Path
) -> None:
    [path] = log.glob("*/run.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"closed": False}))
    found = call("evaluate", log)
    assert found.code == 1
    assert "logit(qmax)" in found.out
    assert "was not closed, so what came last is missing" in found.err


def test_a_report_without_pdf_leaves_no_pdf_of_another(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    out.mkdir()
    (out / "report.pdf").write_bytes(b"of another log")
    assert call("report", log, "--out", out, "--no-pdf").code == 0
    assert not (out / "report.pdf").exists()


def test_a_report_names_a_cost_that_it_cannot_use(
    call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    found = call("report", log, "--cost", "nonsense", "--out", tmp_path / "report")
    assert found.code == 2
    assert "nonsense" in found.err
    wrong = call("report", log, "--compare", log, "--cost", "nonsense", "--folds", 3)
    assert wrong.code == 2
    assert wrong.err.endswith("leave out --cost, --folds\n")


def test_a_log_without_a_name_is_refused(call: Callable[..., Outcome]) -> None:
    found = call("inspect", "")
    assert (found.code, found.err.count("\n")) == (2, 1)
    assert "without a name" in found.err
