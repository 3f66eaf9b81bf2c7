"""A simulation on a terminal: what to verify and what a policy gains, by requests at once."""

from __future__ import annotations

import re

import polars as pl
import pytest
from rich.console import Console

from draftlab.reporting.console.studies import print_simulation
from draftlab.studies.simulate.simulate import Simulation, simulate
from draftlab.synth import synth_log


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    run = synth_log(tmp_path_factory.mktemp("log"), num_requests=60)
    names = ["logit_qmax", "oracle"]
    return simulate(run, predictors=names, concurrencies=[1, 256], by_dataset=False, regret=False)


def printed(result: Simulation, capsys: pytest.CaptureFixture[str], width: int = 120) -> str:
    print_simulation(result, Console(width=width))
    return capsys.readouterr().out


def test_fixed_lengths_and_gains_stand_by_concurrency(
    result: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(result, capsys)
    for K in range(6):
        [line] = re.findall(rf"^K = {K} +(.*)$", text, re.M)
        fixed = result.frontier.filter(policy="fixed", verify_length=K).sort("concurrency")
        assert line.split() == [f"{value:,.0f}" for value in fixed["tokens_per_second"]]
    [line] = re.findall(r"^av/oracle +(.*)$", text, re.M)
    gain = result.gains.filter(predictor="oracle", concurrency=256)["gain"][0]
    assert line.split()[-1] == f"+{100 * gain:.1f}%"


def test_a_gain_whose_interval_covers_nothing_is_marked(
    result: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    unsure = result.gains.with_columns(gain=0.01, gain_low=-0.01, gain_high=0.03)
    text = printed(replace(result, gains=unsure), capsys)
    assert re.search(r"^av/oracle +\+1\.0%\?", text, re.M)


def test_where_nothing_gains_one_line_says_so(
    result: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    zeros = {name: pl.lit(0.0) for name in ("gain", "gain_low", "gain_high")}
    text = printed(replace(result, gains=result.gains.with_columns(**zeros)), capsys)
    assert "No policy gains or loses anything at 1, 256 requests at once." in text
    assert "av/oracle" not in text.partition("note:")[0]


def test_no_number_is_cut_on_a_narrow_terminal(
    result: Simulation, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(result, capsys, width=60).partition("note:")[0]
    assert "…" not in text
    for value in result.frontier.filter(policy="fixed")["tokens_per_second"]:
        assert f"{value:,.0f}" in text
