"""Crash-safe writer of one run: a background thread turns batches of rows into Parquet parts.

The engine hands over numpy arrays and goes on. If the disk is slower than the engine, the
writer drops whole proposals and counts them; it never blocks, and an error of the disk never
reaches the engine before `close`. A part is written under a temporary name, brought to the
disk and renamed: a kill at any instant loses at most the open part.
"""

from __future__ import annotations

import secrets
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from draftlab import provenance, schema
from draftlab.log.files import replace_file, write_json
from draftlab.log.trees import TREE_COLUMNS, tree_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS_PER_PART = 1_000_000
SECONDS_PER_PART = 60.0
MAX_PENDING_ROWS = 500_000
"""Draft rows that may wait for the disk: about 40 MB."""
REQUESTS_PER_PART = 10_000
"""Request r lives in part r // REQUESTS_PER_PART, which is rewritten as its requests end."""

_COMPRESSION_LEVEL = 9
_ENCODINGS = {"float32": "BYTE_STREAM_SPLIT", "int64": "DELTA_BINARY_PACKED",
              "int32": "DELTA_BINARY_PACKED", "int16": "DELTA_BINARY_PACKED",
              "uint16": "DELTA_BINARY_PACKED"}  # fmt: skip


class LogWriteWarning(UserWarning):
    """Rows of a run did not reach the disk."""


def new_run_name() -> str:
    """Return a run name that sorts by time and does not repeat."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@dataclass
class _Open:
    """What the background thread holds that is not yet in a finished part."""

    drafts: list[Mapping[str, np.ndarray[Any, Any]]] = field(default_factory=list)
    draft_rows: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    requests: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    since: float = field(default_factory=time.monotonic)


class LogWriter:
    """Write one run of a draft log; use as a context manager.

    Parameters
    ----------
    log : path
        Folder of the log; the run becomes a folder in it.
    metadata : mapping
        Keys of run.json that the engine knows (`schema.RUN`); the writer fills in version,
        times and row counts.
    rows_per_part, seconds_per_part
        A part is finished when it holds so many draft rows or is so old.
    max_pending_rows
        Draft rows that may wait for the disk before proposals are dropped.
    """

    def __init__(
        self,
        log: str | Path,
        metadata: Mapping[str, Any],
        *,
        rows_per_part: int = ROWS_PER_PART,
        seconds_per_part: float = SECONDS_PER_PART,
        max_pending_rows: int = MAX_PENDING_ROWS,
    ) -> None:
        self._rows_per_part = rows_per_part
        self._seconds_per_part = seconds_per_part
        self._max_pending = max_pending_rows
        self._metadata = _run_metadata(metadata)
        self.run: str = self._metadata["run"]
        self.folder: Path = Path(log) / self.run
        self.folder.mkdir(parents=True)
        write_json(self.folder / "run.json", self._metadata)

        self._wake = threading.Condition()
        self._queue: deque[tuple[str, Any, Any]] = deque()
        self._pending = 0
        self._closing = False
        self._parts = 0
        self._rows = dict.fromkeys(("requests", "drafts", "steps"), 0)  # trees when there are any
        self._open = _Open()
        self.dropped_proposals = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="draftlab-log", daemon=True)
        self._thread.start()

    def request(self, request: int, **columns: Any) -> None:
        """Record columns of a request; a later call adds to or replaces them."""
        self._put("request", request, columns)

    def step(
        self,
        row: Mapping[str, Any] | None,
        drafts: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """Record an engine step and the draft rows that became final in it.

        Parameters
        ----------
        row : mapping
            Columns of `steps`; ``num_dropped`` counts proposals lost before they came here, and
            those dropped here are added. None for rows that become final outside a step:
            proposals that no verdict will cover.
        drafts : mapping of str to (n,) array, optional
            Columns of `drafts`, whole proposals, ordered by (step, slot, position). A masked
            array's masked entries and a NaN become null. The arrays are not copied: do not
            change them afterwards. ``tree_rank`` and ``tree_log_prob`` (n, W) with ``tree_drawn``
            (n,), the drawn one of the W alternatives, become rows of `trees`.
        """
        dropped = 0 if row is None else int(row.get("num_dropped", 0))
        rows = 0 if drafts is None else len(drafts["position"])
        with self._wake:
            full = self.error is not None or self._pending + rows > self._max_pending
        if drafts is not None and full:
            dropped += int(np.count_nonzero(np.asarray(drafts["position"]) == 0))
            drafts, rows = None, 0
        self.dropped_proposals += dropped
        step = None if row is None else {**row, "num_dropped": dropped}
        self._put("step", step, drafts, rows)

    def close(self) -> None:
        """Finish the open part and run.json; warn if rows were lost. Safe to call twice."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        self._thread.join()
        if self.error is None:
            self._metadata |= {
                "finished": provenance.utc_now(),
                "closed": True,
                "rows": self._rows,
                "dropped_proposals": self.dropped_proposals,
            }
            write_json(self.folder / "run.json", self._metadata)
        if self.error is not None:
            warnings.warn(f"run {self.folder}: writing stopped: {self.error}", LogWriteWarning, 2)
        elif self.dropped_proposals:
            warnings.warn(
                f"run {self.folder}: {self.dropped_proposals} proposals dropped, the disk was "
                "slower than the engine",
                LogWriteWarning,
                2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _put(self, kind: str, row: Any, columns: Any, rows: int = 0) -> None:
        with self._wake:
            if self.error is None:
                self._queue.append((kind, row, columns))
                self._pending += rows
                self._wake.notify()

    def _work(self) -> None:
        try:
            while self._take():
                age = time.monotonic() - self._open.since
                if self._open.draft_rows >= self._rows_per_part or age >= self._seconds_per_part:
                    self._flush()
            self._flush()
        except Exception as error:  # whatever it is, the engine must not see it
            with self._wake:
                self.error = error
                self._queue.clear()

    def _take(self) -> bool:
        """Move what waits into the open part; False when the writer is closing and all is taken."""
        with self._wake:
            if not self._queue and not self._closing:
                self._wake.wait(timeout=min(1.0, self._seconds_per_part))
            items = list(self._queue)
            self._queue.clear()
            self._pending = 0
            more = not self._closing
        batch = self._open
        for kind, row, columns in items:
            if kind == "request":
                self._take_request(row, columns)
            else:
                if row is not None:
                    batch.steps.append(row)
                if columns is not None:
                    batch.drafts.append(columns)
                    batch.draft_rows += len(columns["position"])
        return more

    def _take_request(self, request: int, columns: Mapping[str, Any]) -> None:
        block = request // REQUESTS_PER_PART
        rows = self._open.requests.setdefault(block, {})
        if request not in rows:
            rows[request] = {"request": request}
            self._rows["requests"] += 1
        rows[request].update(columns)
        self._open.dirty.add(block)

    def _flush(self) -> None:
        """Write the open part; requests first, so that no finished draft lacks its request."""
        batch = self._open
        for block in sorted(batch.dirty):
            rows = batch.requests[block]
            self._write("requests", block, _row_table("requests", list(rows.values())))
            finished = all(row.get("finish_reason") is not None for row in rows.values())
            if finished and len(rows) == REQUESTS_PER_PART:
                del batch.requests[block]
        batch.dirty.clear()
        if batch.drafts:
            self._write("drafts", self._parts, _draft_table(batch.drafts))
            self._rows["drafts"] += batch.draft_rows
            trees = [tree_rows(drafts) for drafts in batch.drafts if TREE_COLUMNS[0] in drafts]
            if trees:
                table = pa.concat_tables(_table("trees", rows) for rows in trees)
                self._write("trees", self._parts, table.combine_chunks())
                self._rows["trees"] = self._rows.get("trees", 0) + len(table)
        if batch.steps:
            self._write("steps", self._parts, _row_table("steps", batch.steps))
            self._rows["steps"] += len(batch.steps)
        self._parts += bool(batch.drafts or batch.steps)
        batch.drafts, batch.draft_rows, batch.steps = [], 0, []
        batch.since = time.monotonic()

    def _write(self, table: str, part: int, content: pa.Table) -> None:
        path = self.folder / table / f"part-{part:05d}.parquet"
        replace_file(path, lambda temporary: _write_parquet(content, temporary))


def _run_metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        "schema_version": schema.VERSION,
        "run": new_run_name(),
        "draftlab": provenance.version(),
        "started": provenance.utc_now(),
        "closed": False,
    } | dict(given)
    missing = [c.name for c in schema.RUN if c.null is None and c.name not in known]
    if missing:
        raise ValueError(f"run metadata lacks {missing}")
    ordered = {column.name: known.pop(column.name, None) for column in schema.RUN}
    return ordered | known


def _draft_table(batches: list[Mapping[str, np.ndarray[Any, Any]]]) -> pa.Table:
    return pa.concat_tables(_table("drafts", batch) for batch in batches).combine_chunks()


def _table(name: str, batch: Mapping[str, np.ndarray[Any, Any]]) -> pa.Table:
    arrow = schema.arrow_schema(name)
    unknown = sorted(set(batch) - set(arrow.names) - set(TREE_COLUMNS))
    if unknown:
        raise ValueError(f"unknown columns of {name}: {unknown}")
    n = len(batch["step"])
    columns = [
        _draft_column(batch[field.name], field.type)
        if field.name in batch
        else pa.nulls(n, field.type)
        for field in arrow
    ]
    return pa.table(columns, schema=arrow)


def _draft_column(values: np.ndarray[Any, Any], dtype: pa.DataType) -> pa.Array:
    mask = np.ma.getmaskarray(values)
    plain = np.ma.getdata(values)
    if plain.dtype.kind == "f":
        mask = mask | np.isnan(plain)
    return pa.array(plain, type=dtype, mask=mask)


def _row_table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema.arrow_schema(table))


def _write_parquet(content: pa.Table, path: Path) -> None:
    columns = {column.name: column.dtype for table in schema.TABLES.values() for column in table}
    encodings = {
        name: _ENCODINGS[columns[name]]
        for name in content.column_names
        if columns[name] in _ENCODINGS
    }
    pq.write_table(
        content,
        path,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=[name for name in content.column_names if name not in encodings],
        column_encoding=encodings,
    )
