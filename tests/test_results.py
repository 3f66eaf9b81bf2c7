"""Results live on disk: what is read equals what was written; keys say what was made of what."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import draftlab
from draftlab.errors import InputError
from draftlab.log.reader import open_log
from draftlab.results import FORMAT, Note, Result, key_of
from draftlab.studies import RESULTS, result_class
from draftlab.studies.audit.audit import audit
from draftlab.studies.calibrate import calibrate
from draftlab.studies.compare import compare
from draftlab.studies.evaluate import Evaluation, evaluate
from draftlab.studies.inspect import inspect
from draftlab.studies.replay.drift import drift
from draftlab.studies.replay.replay import replay
from draftlab.studies.replay.sweep import sweep
from draftlab.studies.simulate.simulate import simulate
from draftlab.studies.stability.stability import stability
from draftlab.synth import synth_log

if TYPE_CHECKING:
    from collections.abc import Callable

FROZEN = Path(__file__).parent / "data" / "results" / "1"
"""Results of format 1, written once: every later version reads them."""
MAKE: dict[str, Callable[[Path], Result]] = {
    "inspect": inspect,
    "evaluate": lambda log: evaluate(log, keep_predictions=True),
    "stability": stability,
    "calibrate": lambda log: calibrate(log, methods="platt"),
    "compare": lambda log: compare(log, log),
    "replay": lambda log: replay(log, refit_interval=5),
    "sweep": lambda log: sweep(log, "damping=0,50", processes=1),
    "drift": lambda log: drift(log, "easy@30 > hard@30", refit_interval=10),
    "simulate": lambda log: simulate(log, "L4/llama-8b", predictors="logit_qmax"),
    "audit": lambda log: audit(log, predictors="logit_qmax"),
}

COMMANDS = [
    pytest.param(name, marks=pytest.mark.slow)
    if name in ("compare", "evaluate", "stability")
    else name
    for name in MAKE
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    return synth_log(folder, num_requests=40, datasets={"easy": 1.0, "hard": -0.5})


def assert_same(found: Result, wanted: Result) -> None:
    assert type(found) is type(wanted)
    assert list(found.tables) == list(wanted.tables)
    for name, frame in wanted.tables.items():
        assert_frame_equal(found.tables[name], frame, check_exact=True)
    assert found.notes == wanted.notes
    assert json.dumps(found.to_dict(), sort_keys=True) == json.dumps(
        wanted.to_dict(), sort_keys=True
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_read_equals_what_was_written(command: str, run: Path, tmp_path: Path) -> None:
    made = MAKE[command](run)
    folder = made.write(tmp_path)
    assert folder == tmp_path / command
    assert_same(result_class(command).read(tmp_path), made)
    assert_same(draftlab.read_result(folder), made)
    assert_same(draftlab.read_result(folder / "result.json"), made)


def test_every_study_has_its_class() -> None:
    assert set(RESULTS) == {*MAKE, "trimming-check"}
    for command in RESULTS:
        assert result_class(command).command == command
        assert all(meaning for meaning in result_class(command).meanings().values())


@pytest.mark.parametrize("command", [path.name for path in sorted(FROZEN.iterdir())])
def test_frozen_results_of_format_1_are_read(command: str, tmp_path: Path) -> None:
    """Written by the first version that had them; `make` never touches them."""
    found = draftlab.read_result(FROZEN / command)
    assert found.command == command
    assert all(len(frame.columns) for frame in found.tables.values())
    content = json.loads((FROZEN / command / "result.json").read_text(encoding="utf-8"))
    assert content["format"] == FORMAT == 1
    for name in content["tables"]:
        stored = pl.read_parquet(FROZEN / command / f"{name}.parquet")
        assert_frame_equal(found.tables[name], stored, check_exact=True)
    assert_same(result_class(command).read(found.write(tmp_path)), found)


def test_a_frozen_evaluation_keeps_its_numbers() -> None:
    found = Evaluation.read(FROZEN / "evaluate")
    row = found.metrics.filter(predictor="logit_qmax", scope="overall").row(0, named=True)
    assert (row["n"], row["n_accepted"]) == (940, 565)
    assert row["auc"] == pytest.approx(0.674144, abs=1e-6)


def test_a_table_that_was_not_asked_for_is_not_there(run: Path, tmp_path: Path) -> None:
    evaluate(run, predictors="constant", keep_predictions=True, out=tmp_path)
    assert (tmp_path / "evaluate" / "predictions.parquet").is_file()
    evaluate(run, predictors="constant", out=tmp_path)  # the old one would be of other rows
    assert Evaluation.read(tmp_path).predictions is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "metrics.parquet").unlink(), "metrics.parquet: is missing"),
        (lambda folder: (folder / "metrics.parquet").write_bytes(b"x"), "is no readable table"),
        (lambda folder: (folder / "result.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "result.json").write_text("[]"), "has result format None"),
        (
            lambda folder: (folder / "result.json").write_text('{"format": 9}'),
            "has result format 9, this draftlab reads format 1",
        ),
        (lambda folder: shutil.rmtree(folder), "holds no result"),
    ],
)
def test_damaged_results_end_in_one_sentence(
    damage: Callable[[Path], Any], message: str, run: Path, tmp_path: Path
) -> None:
    folder = evaluate(run, predictors="constant").write(tmp_path)
    damage(folder)
    with pytest.raises(InputError, match=message):
        Evaluation.read(tmp_path)


def test_a_folder_of_several_results_is_not_one(run: Path, tmp_path: Path) -> None:
    inspect(run, out=tmp_path)
    audit(predictors="logit_qmax", out=tmp_path)
    with pytest.raises(InputError, match="holds results of inspect, audit; name one"):
        draftlab.read_result(tmp_path)


def test_a_note_is_a_code_with_a_sentence() -> None:
    assert str(Note("pooled", "rows of 2 runs are pooled")) == "rows of 2 runs are pooled"
    assert str(Note("pooled", "pooled", run="a (greedy)")) == "a (greedy): pooled"


# --- keys


def test_equal_calls_have_equal_keys(run: Path, tmp_path: Path) -> None:
    wanted = key_of(evaluate, run)
    assert evaluate(run, predictors="constant").provenance["key"] != wanted
    assert key_of(evaluate, open_log(run)) == wanted
    assert key_of(evaluate, run, folds=5, out=tmp_path) == wanted
    assert key_of(evaluate, run, folds=4) != wanted
    copy = shutil.copytree(run, tmp_path / "copy" / run.name)
    assert key_of(evaluate, copy) == wanted  # the same log elsewhere


def test_a_key_follows_the_log(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / run.name)
    before = key_of(evaluate, copy)
    [part, *_] = sorted((copy / "drafts").glob("*.parquet"))
    rows = pl.read_parquet(part)
    rows.with_columns(accepted=~pl.col("accepted")).write_parquet(part)
    assert key_of(evaluate, copy) != before


def test_a_key_follows_the_plugin_file(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("METRICS = {'one': lambda y, z: 1.0}")
    before = key_of(evaluate, run, plugin=path)
    assert key_of(evaluate, run, plugin=draftlab.load_plugins(path)) == before
    path.write_text("METRICS = {'one': lambda y, z: 2.0}")
    assert key_of(evaluate, run, plugin=path) != before
    assert key_of(evaluate, run) != before


@pytest.mark.slow
def test_a_key_is_the_same_in_another_process(run: Path) -> None:
    code = (
        "import sys; from draftlab.results import key_of; from draftlab.studies.evaluate import "
        "evaluate; print(key_of(evaluate, sys.argv[1], predictors=['entropy', 'qmax']))"
    )
    command = [sys.executable, "-c", code, str(run)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == key_of(evaluate, run, predictors=["entropy", "qmax"])


# --- on a screen


@pytest.mark.parametrize("command", COMMANDS)
def test_a_repr_fits_a_screen(command: str, run: Path) -> None:
    result = MAKE[command](run)
    lines = repr(result).splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 140
    assert lines[0].startswith(f"draftlab {command}")
    html = result._repr_html_()
    assert html.count("<table") == html.count("</table>")
    for name in result.tables:
        assert name in html


def test_hostile_names_are_inert_in_a_notebook(run: Path) -> None:
    result = evaluate(run, predictors="logit_qmax")
    hostile = "<script>alert(1)</script>"
    tables = {n: f.with_columns(pair=pl.lit(hostile)) for n, f in result.tables.items()}
    assert hostile not in replace(result, **tables)._repr_html_()  # type: ignore[arg-type]


@pytest.mark.slow
def test_figures_are_drawn_by_name(run: Path) -> None:
    from matplotlib.figure import Figure

    assert isinstance(evaluate(run).plot("reliability"), Figure)
    assert isinstance(replay(run, refit_interval=5).plot("rolling"), Figure)
    with pytest.raises(InputError, match="inspect has no figure 'x'; known: none"):
        inspect(run).plot("x")
    with pytest.raises(InputError, match="known: correlation, transfer, learning"):
        stability(run).plot()
