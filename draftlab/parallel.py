"""Run independent work side by side: numpy in threads, a generator in a process of its own.

Sorts and arithmetic release Python's lock, so threads serve them. A process serves what holds
the lock; not by `multiprocessing`, which would run the caller's script again, guarded or not.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

P = ParamSpec("P")
Item = TypeVar("Item")
Result = TypeVar("Result")


MAX_THREADS = 4
"""Each thread holds some ten arrays of all rows at once."""


def run_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result of each item, in order; the first error is raised.

    Examples
    --------
    >>> run_threads(abs, [-1, 2])
    [1, 2]
    """
    workers = min(MAX_THREADS, os.cpu_count() or 1, len(items))
    if workers < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))


@contextmanager
def stream_process(
    function: Callable[P, Iterator[Item]], *args: P.args, **kwargs: P.kwargs
) -> Iterator[Iterator[Item]]:
    """Start a generator in another process; what it yields waits here until it is asked for.

    Parameters
    ----------
    function : callable
        Importable by its name; arguments and items can be pickled. What it raises is raised by
        the iterator. The process ends with the block, whether or not all was asked for.

    Raises
    ------
    RuntimeError
        By the iterator: the process ended early.

    Examples
    --------
    >>> with stream_process(iter, [7, 2]) as items:
    ...     list(items)
    [7, 2]
    """
    # one thread: the caller works too
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "POLARS_MAX_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "draftlab.parallel"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((function, args, kwargs), process.stdin)
            process.stdin.close()
            arrived: SimpleQueue[tuple[str, Any] | None] = SimpleQueue()
            Thread(target=_read, args=(process.stdout, arrived), daemon=True).start()
            yield _take(arrived, process, str(getattr(function, "__name__", function)))
        finally:
            process.kill()


def _read(source: IO[bytes], arrived: SimpleQueue[tuple[str, Any] | None]) -> None:
    try:
        while True:
            arrived.put(pickle.load(source))  # noqa: S301 - from our own process
    except (EOFError, pickle.UnpicklingError, ValueError):  # it ended, if in mid-item
        arrived.put(None)


def _take(
    arrived: SimpleQueue[tuple[str, Any] | None], process: subprocess.Popen[bytes], name: str
) -> Iterator[Any]:
    while (message := arrived.get()) is not None:
        kind, value = message
        if kind == "end":
            return
        if kind == "error":
            raise value
        yield value
    raise RuntimeError(f"{name} ended with exit status {process.wait()}")


def _answer() -> None:
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # whatever is printed is no answer

    def send(kind: str, value: object) -> None:
        pickle.dump((kind, value), out)
        out.flush()

    function, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own process
    try:
        for item in function(*args, **kwargs):
            send("item", item)
    except Exception as error:  # raised again by the caller's iterator
        send("error", error)
    else:
        send("end", None)


if __name__ == "__main__":
    _answer()
