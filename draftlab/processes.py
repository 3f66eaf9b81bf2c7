"""Run a function of the package in a process of its own, beside work that holds Python's lock.

Not `multiprocessing`: that would run the caller's script again, which need not be guarded.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
Result = TypeVar("Result")


def run_process(function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Return what a function returns, or raise what it raises, computed in another process.

    Parameters
    ----------
    function : callable
        Importable by its name; arguments and result can be pickled.

    Raises
    ------
    RuntimeError
        The process ended without an answer.

    Examples
    --------
    >>> run_process(divmod, 7, 2)
    (3, 1)
    """
    # one thread: the caller works too
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "POLARS_MAX_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "draftlab.processes"],
        input=pickle.dumps((function, args, kwargs)),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{function.__name__} ended with exit status {ended.returncode}")
    result, error = pickle.loads(ended.stdout)  # noqa: S301 - from our own process
    if error is not None:
        raise error
    return cast("Result", result)


def _answer() -> None:
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever is printed is no answer
    function, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own process
    answer: tuple[Any, Exception | None]
    try:
        answer = function(*args, **kwargs), None
    except Exception as error:  # raised again by `run_process`
        answer = None, error
    pickle.dump(answer, out)


if __name__ == "__main__":
    _answer()
