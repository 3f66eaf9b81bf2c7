"""What a researcher types in one line works, in a fresh interpreter."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer.main

import draftlab
from draftlab.cli import app
from tests.paths import SAMPLE_T1

if TYPE_CHECKING:
    from pathlib import Path

LINES = {
    "evaluate and look": (
        "r = repr(draftlab.evaluate(log)); print(r); "
        "assert len(r) < 5000 and 'logit(qmax)' in r and 'log-' in r"
    ),
    "simulate on an L4": (
        "gains = draftlab.simulate(log, 'L4/llama-8b', concurrencies=[64]).gains; "
        "assert gains['cost'].unique().to_list() == ['L4 llama-8b (model)']"
    ),
    "replay, refit every 25": (
        "assert draftlab.replay(log, refit_interval=25).settings['refit_interval'] == 25"
    ),
    "plot AUC by position": (
        "draftlab.evaluate(log).plot('auc_by_position').savefig('auc.svg'); "
        "import pathlib; assert pathlib.Path('auc.svg').stat().st_size > 5000"
    ),
    "load yesterday's result": (
        "draftlab.evaluate(log, predictors='logit_qmax', out='results'); "
        "old = draftlab.read_result('results'); "
        "assert old.metrics.filter(predictor='logit_qmax', scope='overall')['auc'][0] > 0.6"
    ),
}
NOT_CALLS = {"AcceptanceRegression", "InputError", "__version__", "metrics"}
HELPERS = {"find_cost", "load_plugins", "open_log", "read_result"}
"""Public functions that are no command."""
RENAMED = {"predictor": "predictors", "policy": "policies", "estimator": "estimators"} | {
    "source": "sources", "method": "methods", "concurrency": "concurrencies",
    "threshold": "thresholds",
}  # fmt: skip
"""Options that may be repeated have their plural in Python."""
OF_THE_TERMINAL = {"json_out", "quiet", "strict", "markdown", "ctx", "log_paths"}


@pytest.mark.slow
@pytest.mark.parametrize("wish", LINES)
def test_one_line_in_a_fresh_interpreter(wish: str, tmp_path: Path) -> None:
    code = f"import draftlab; log = {str(SAMPLE_T1)!r}; {LINES[wish]}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)


@pytest.mark.slow
def test_the_package_lists_what_it_offers() -> None:
    assert dir(draftlab) == draftlab.__all__
    code = "import draftlab; print(draftlab.metrics.auc([True, False], [1.0, 0.0]), dir(draftlab))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.startswith("1.0 ['AcceptanceRegression', 'InputError'")
    for name in draftlab.__all__:
        assert getattr(draftlab, name) is not None


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_is_a_call_of_the_same_name() -> None:
    named = {name.replace("-", "_") for name in commands()}
    assert named == set(draftlab.__all__) - NOT_CALLS - HELPERS


@pytest.mark.parametrize("name", sorted(commands()))
def test_options_of_a_command_are_those_of_its_call(name: str) -> None:
    function = getattr(draftlab, name.replace("-", "_"))
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return  # it hands options on, and refuses what it does not know
    for param in commands()[name].params:
        option = str(param.name)
        if option in OF_THE_TERMINAL or option in ("compare_all", "help"):
            continue
        assert option in parameters or RENAMED.get(option) in parameters, option


@pytest.mark.parametrize("name", ["evaluate", "calibrate", "audit", "simulate"])
def test_one_name_is_taken_as_such(name: str) -> None:
    """A str is no sequence of letters."""
    parameters = inspect.signature(getattr(draftlab, name)).parameters
    plural = next(p for p in ("predictors", "sources") if p in parameters)
    with pytest.raises(draftlab.InputError, match="'nothing'"):
        getattr(draftlab, name)(SAMPLE_T1, **{plural: "nothing"})


def test_a_training_frame_is_what_evaluate_grades() -> None:
    X, y, groups = draftlab.open_log(SAMPLE_T1).training_frame(["logit_qmax"])
    result = draftlab.evaluate(SAMPLE_T1, predictors="logit_qmax", in_sample=True)
    overall = result.metrics.filter(scope="overall")
    assert (len(y), int(y.sum())) == (overall["n"][0], overall["n_accepted"][0])
    assert len(np.unique(groups)) == overall["n_prompts"][0]
    model = draftlab.AcceptanceRegression(position_column="position").fit(X, y)
    fit = result.coefficients
    whole = fit.filter(fit["dataset"].is_null(), fit["fold"].is_null()).sort("position")
    np.testing.assert_allclose(model.coef_[0, 0], whole["slope"][0], rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, whole["intercept"].to_numpy(), rtol=1e-9)


def test_a_log_shows_itself_in_a_line() -> None:
    text = repr(draftlab.open_log(SAMPLE_T1))
    assert "SmolLM2-135M-Instruct + skip {13,25}" in text
    assert len(text) < 200
    with pytest.raises(draftlab.InputError, match="unknown feature 'x'; known: log_qmax"):
        draftlab.open_log(SAMPLE_T1).training_frame("x")
