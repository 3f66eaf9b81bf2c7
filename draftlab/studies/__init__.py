"""Studies: a log in, a result of tidy tables out, one module or package each."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from draftlab.errors import InputError

if TYPE_CHECKING:
    from draftlab.results import Result

RESULTS = {
    "inspect": "draftlab.studies.inspect.Inspection",
    "evaluate": "draftlab.studies.evaluate.Evaluation",
    "stability": "draftlab.studies.stability.stability.Stability",
    "calibrate": "draftlab.studies.calibrate.Calibration",
    "compare": "draftlab.studies.compare.Comparison",
    "replay": "draftlab.studies.replay.replay.Replay",
    "sweep": "draftlab.studies.replay.sweep.Sweep",
    "drift": "draftlab.studies.replay.drift.Drift",
    "simulate": "draftlab.studies.simulate.simulate.Simulation",
    "trimming-check": "draftlab.studies.simulate.trimming_check.TrimmingCheck",
    "audit": "draftlab.studies.audit.audit.Audit",
}
"""The result class behind each command, which is also its folder."""


def result_class(command: str) -> type[Result]:
    """Return the result class of a command."""
    module, _, name = RESULTS[command].rpartition(".")
    found: type[Result] = getattr(import_module(module), name)
    return found


def read_result(folder: str | Path) -> Result:
    """Read a result from disk, whatever its study.

    Parameters
    ----------
    folder : path
        OUT/<command>, its result.json, or OUT where it holds one result.

    Raises
    ------
    InputError
        No result is there, or several.

    Examples
    --------
    >>> import tempfile
    >>> from draftlab.studies.audit.audit import audit
    >>> out = tempfile.mkdtemp()
    >>> audit(predictors="logit_qmax", out=out).passed, read_result(out).command
    (True, 'audit')
    """
    from draftlab.results import find_result

    found = [command for command in RESULTS if find_result(folder, command) is not None]
    if not found:
        raise InputError(f"{folder}: holds no result (no result.json in it or one folder below)")
    if len(found) > 1:
        raise InputError(
            f"{folder}: holds results of {', '.join(found)}; name one, as {Path(folder) / found[0]}"
        )
    return result_class(found[0]).read(folder)
