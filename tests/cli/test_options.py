"""What several commands share: where they write, what they refuse, how they end."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import polars as pl
import pytest

from tests.cli.command import Outcome, edit, part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
def test_quiet_prints_nothing(call: Callable[..., Outcome], log: Path) -> None:
    assert call("evaluate", log, "--quiet").out == ""


def test_an_unknown_predictor_lists_the_known(call: Callable[..., Outcome], log: Path) -> None:
    found = call("evaluate", log, "--predictor", "logit_qmx")
    assert found.code == 2
    assert "unknown predictor 'logit_qmx'; known: log_qmax" in found.err


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


@pytest.mark.slow
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
