"""No option is dropped in silence: what a mode does not take is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from draftlab.errors import InputError
from draftlab.studies.replay.drift import drift
from draftlab.studies.replay.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.command import Outcome

REFUSED = {
    "evaluate LOG --in-sample --folds 3": "--folds says nothing in sample",
    "evaluate LOG --compare-all --predictor entropy": "--compare-all needs two predictors",
    "report LOG --in-sample --folds 3 --out OUT": "--folds says nothing in sample",
    "report LOG --compare LOG --fresh --out OUT": "leave out --fresh",
    "report LOG --compare LOG --by dataset --out OUT": "leave out --by",
    "simulate LOG --predictor oracle --policy fixed": "name policies or predictors, not both",
    "simulate LOG --cost L4/llama-8b --policy fixed --cap 3": "--cap bounds a shared budget",
    "replay LOG --feature entropy --float32": "--float32 quantises logit_qmax",
    "replay LOG --estimator vllm --decay 0.5": "has no constant decay",
    "sweep LOG --grid damping=0,50 --damping 3": "damping is swept, so it has no one value",
    "audit --threshold 0.4": "--threshold says nothing without a log",
    "collect --cost L4/llama-8b --out OUT": "--cost says nothing without --adaptive-verification",
    "collect --adaptive-verification qmax --cost L4/llama-8b --fit-on LOG --out OUT": (
        "--fit-on says nothing to qmax"
    ),
    "collect --adaptive-verification online-vllm --cost L4/llama-8b --fit-on LOG --out OUT": (
        "--fit-on says nothing to online-vllm"
    ),
    "collect --drafter nowhere --skip-layers 4,7 --out OUT": "left out beside a drafter",
    "collect --engine vllm --skip-layers 4,7 --out OUT": "does not take --skip-layers",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_mode_does_not_take_is_refused_by_name(
    words: str, call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    places = {"LOG": str(log), "OUT": str(tmp_path / "out")}
    found = call(*(places.get(word, word) for word in words.split()))
    assert found.code == 2, found.out
    assert REFUSED[words] in found.err
    assert len(found.err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--where=request=1", "--by=dataset", "--fresh", "--strict"])
def test_a_folder_of_results_takes_no_option_of_a_log(
    option: str, call: Callable[..., Outcome], log: Path, tmp_path: Path
) -> None:
    assert call("inspect", log, "--out", tmp_path / "results").code == 0
    found = call("report", tmp_path / "results", option, "--out", tmp_path / "report")
    assert found.code == 2
    assert option.partition("=")[0] in found.err


def test_python_refuses_the_same(log: Path) -> None:
    with pytest.raises(InputError, match="a sweep is of one estimator"):
        sweep(log, "damping=0", estimators=["vllm"])
    for name in ("offline", "snapshot"):
        with pytest.raises(InputError, match=f"drift does not take {name}"):
            drift(log, "even@3 > odd@3", **{name: True})  # type: ignore[arg-type]
