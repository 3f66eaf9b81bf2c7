"""Open draft logs: find runs, check their files, hand out lazy tables with their metadata."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from draftlab import schema
from draftlab.errors import InputError
from draftlab.features import FEATURES
from draftlab.log.files import TEMPORARY
from draftlab.log.where import narrow_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from polars._typing import PolarsDataType

    from draftlab._types import BoolArray
    from draftlab.features import Feature
    from draftlab.log.where import Where

_POLARS: dict[str, PolarsDataType] = {
    "int64": pl.Int64,
    "int32": pl.Int32,
    "int16": pl.Int16,
    "uint16": pl.UInt16,
    "float32": pl.Float32,
    "bool": pl.Boolean,
    "string": pl.String,
    "dictionary": pl.String,
}


_FOOTER_TAIL = 8
"""Bytes behind a Parquet footer: its length and the magic number."""


@dataclass(frozen=True)
class Problem:
    """A file that could not be read; its rows are missing from every table."""

    path: str
    message: str

    @property
    def place(self) -> str:
        """Run, table and part: what a result may tell, unlike a folder of this machine."""
        return "/".join(self.path.split("/")[-3:])


@dataclass(frozen=True)
class Run:
    """One run: its metadata (run.json) and its readable parts."""

    name: str
    path: str
    """Its folder, as a path or a URI that `open_log` takes."""
    metadata: dict[str, Any]
    parts: dict[str, tuple[str, ...]]
    """Readable parts by table, as paths or URIs that polars can scan."""
    rows: dict[str, int]
    """Rows by table, from the footers of the readable parts; of a part of a log, counted."""
    unfinished: tuple[str, ...]
    """Temporary files that a writer left behind."""
    fingerprint: str
    """Of run.json and of the names, sizes and footers of the readable parts: equal for a copy."""
    where: Where | None = None
    """Which rows `scan` hands out; None: all."""

    @property
    def pair(self) -> str:
        """Target and drafter, as one label; the drafting method is a column of its own."""
        return f"{self.metadata['target']} + {self.metadata['drafter']}"

    @cached_property
    def _schemas(self) -> dict[str, set[str]]:
        return {
            table: set(pl.scan_parquet(list(parts)).collect_schema()) if parts else set()
            for table, parts in self.parts.items()
        }

    def scan(self, table: str) -> pl.LazyFrame:
        """Scan a table lazily in the log's dtypes, optional columns filled with null.

        Columns: those of `schema.TABLES`, preceded by ``run``; unknown ones are dropped.
        """
        return self.scan_whole(table) if self.where is None else self.where.scan(self, table)

    def scan_whole(self, table: str) -> pl.LazyFrame:
        """Scan all rows of a table, also of a run that is narrowed to some."""
        columns = schema.TABLES[table]
        parts = list(self.parts[table])
        if not parts:
            dtypes: dict[str, PolarsDataType] = {c.name: _POLARS[c.dtype] for c in columns}
            return pl.LazyFrame(schema={"run": _POLARS["string"], **dtypes})
        present = self._schemas[table]
        return pl.scan_parquet(parts).select(
            pl.lit(self.name).alias("run"),
            *(
                (pl.col(c.name) if c.name in present else pl.lit(None))
                .cast(_POLARS[c.dtype])
                .alias(c.name)
                for c in columns
            ),
        )

    def scan_part(self, path: str) -> pl.LazyFrame:
        """Scan a part of `drafts` as it lies there, the rows of a narrowed run alone."""
        rows = pl.scan_parquet(path)
        if self.where is None:
            return rows
        known = {column.name for column in schema.DRAFTS}
        own = [name for name in rows.collect_schema().names() if name in known]
        return self.where.keep(self, rows.select(own))


class TrainingFrame(NamedTuple):
    """Graded rows for a model of one's own; unpacks as X, y, groups."""

    X: pl.DataFrame
    """(n, 1 + features): position (int16), then the features (float64)."""
    y: BoolArray
    """(n,): accepted."""
    groups: np.ndarray[Any, Any]
    """(n,) str: the prompt, for `GroupKFold`: rows of one prompt resemble one another."""


@dataclass(frozen=True, repr=False)
class DraftLog:
    """One or several runs, read together. Keys are unique within a run."""

    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]
    where: str | None = None
    """Expression that chose the rows; None: all."""
    narrowed_from: DraftLog | None = None

    @property
    def whole(self) -> DraftLog:
        """The log with all its rows."""
        return self.narrowed_from or self

    def narrow(self, where: str | None) -> DraftLog:
        """Return the part of the log that an expression chooses; all that is left for None.

        Parameters
        ----------
        where : str, optional
            SQL over columns of requests and steps, the step's ``time`` (``'2026-11-29T18:00:05'``,
            UTC), ``run``, ``pair`` and the scalars of run.json. Of drafts those rows stay whose
            request, step and run satisfy it; runs without one leave the log.

        Returns
        -------
        DraftLog

        Raises
        ------
        InputError
            What does not parse, reads other columns, or keeps no draft.

        Examples
        --------
        >>> log = open_log("data/sample").narrow("dataset = 'chat' and prompt_tokens < 100")
        >>> log.requests.select("dataset").unique().collect().item()
        'chat'
        """
        if where is None:
            return self
        whole = self.whole
        both = where if self.where is None else f"({self.where}) and ({where})"
        return DraftLog(narrow_runs(whole.runs, both), self.problems, both, whole)

    def scan(self, table: str) -> pl.LazyFrame:
        """Scan a table of `schema.TABLES` of all runs, with a column ``run``."""
        return pl.concat([run.scan(table) for run in self.runs])

    @property
    def fingerprint(self) -> str:
        """Hash of what the runs hold, from run.json and the footers of their parts.

        It covers the expression that chose the rows.
        """
        marks = [run.fingerprint for run in self.runs]
        marks += [] if self.where is None else [f"where {self.where}"]
        marks += [f"{problem.path}: {problem.message}" for problem in self.problems]
        return hashlib.sha256("\n".join(marks).encode()).hexdigest()

    @property
    def drafts(self) -> pl.LazyFrame:
        """Lazy table of draft tokens (`schema.DRAFTS`)."""
        return self.scan("drafts")

    @property
    def requests(self) -> pl.LazyFrame:
        """Lazy table of requests (`schema.REQUESTS`)."""
        return self.scan("requests")

    @property
    def steps(self) -> pl.LazyFrame:
        """Lazy table of engine steps (`schema.STEPS`)."""
        return self.scan("steps")

    def training_frame(self, features: str | Sequence[str] = "logit_qmax") -> TrainingFrame:
        """Return the rows that `evaluate` grades, for a model of one's own.

        Parameters
        ----------
        features : str or sequence of str
            Names in `draftlab.features.FEATURES`; log-odds are clamped at +-40 nats.

        Returns
        -------
        TrainingFrame
            X, y, groups: observed rows without a bit in ``excluded`` and without a null in the
            features, in log order.

        Raises
        ------
        InputError
            An unknown feature.

        Examples
        --------
        >>> X, y, groups = open_log("data/sample-t1").training_frame(["logit_qmax", "entropy"])
        >>> X.columns, len(X) == len(y) == len(groups)
        (['position', 'logit_qmax', 'entropy'], True)
        """
        chosen = _choose_features(features)
        names = [feature.name for feature in chosen]
        prompts = self.requests.select("run", "request", "group")
        rows = (
            self.drafts.filter(pl.col("accepted").is_not_null(), pl.col("excluded") == 0)
            .join(prompts, on=["run", "request"], maintain_order="left")
            .select("position", "accepted", "group", *(f.expr.alias(f.name) for f in chosen))
            .drop_nulls(["group", *names])
            .collect()
        )
        return TrainingFrame(
            rows.select("position", *names), rows["accepted"].to_numpy(), rows["group"].to_numpy()
        )

    def __repr__(self) -> str:
        """Return one line a run: what was recorded, and how much."""
        lines = [
            f"{run.name}: {run.pair}, {run.metadata['drafting']} drafting, "
            f"K = {run.metadata['num_speculative_tokens']}, {run.rows['drafts']:,} drafts"
            for run in self.runs
        ]
        lost = [f"{len(self.problems)} unreadable parts"] if self.problems else []
        part = [] if self.where is None else [f"where {self.where}"]
        return "\n".join(["draftlab.DraftLog", *(f"  {line}" for line in [*lines, *part, *lost])])


def _choose_features(names: str | Sequence[str]) -> list[Feature]:
    chosen = [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in chosen if name not in FEATURES]:
        raise InputError(f"unknown feature {unknown[0]!r}; known: {', '.join(FEATURES)}")
    return [FEATURES[name] for name in chosen]


def open_log(*paths: str | Path, strict: bool = False, where: str | None = None) -> DraftLog:
    """Open logs or single runs, local or remote (``s3://``, ``gs://``).

    Parameters
    ----------
    *paths : str or Path
        A folder of runs, or the folder of one run.
    strict : bool
        Refuse a log with an unreadable part instead of returning the rest.
    where : str, optional
        Which rows to read, as in `DraftLog.narrow`; all unless told.

    Returns
    -------
    DraftLog
        Readable rows, and the parts that could not be read as ``problems``.

    Raises
    ------
    InputError
        No run is found, a run is given twice, run.json is unusable, a column is missing or of
        the wrong type, no part of a run's drafts is readable, ``strict`` and a part is not, or
        ``where`` is not an expression that keeps a draft.

    Examples
    --------
    >>> log = open_log("data/sample")
    >>> log.drafts.select("position").max().collect().item()
    4
    """
    if not paths:
        raise InputError("no log given: name a folder of runs or the folder of one run")
    folders: dict[str, fs.FileSystem] = {}
    for path in paths:
        if not str(path):
            raise InputError("a log without a name: name a folder of runs or that of one run")
        folders |= _find_runs(path)
    runs, problems = [], []
    for folder, filesystem in folders.items():
        run, broken = _open_run(folder, filesystem)
        runs.append(run)
        problems += broken
    _refuse_twice(runs)
    if problems and strict:
        raise InputError(f"{problems[0].path}: {problems[0].message} (--strict)")
    return DraftLog(tuple(runs), tuple(problems)).narrow(where)


def open_any(
    log: DraftLog | str | Path | Sequence[str | Path], where: str | None = None
) -> DraftLog:
    """Return an open log as it is, and open a path or several; narrowed, if ``where`` is given."""
    if isinstance(log, DraftLog):
        return log.narrow(where)
    paths = [log] if isinstance(log, str | Path) else log
    return open_log(*paths, where=where)


def _find_runs(path: str | Path) -> dict[str, fs.FileSystem]:
    """Return the folders of runs at a path, each with the file system it lies on."""
    filesystem, prefix = _filesystem(path)
    info = filesystem.get_file_info(prefix)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{path}: no such file or folder")
    if info.type != fs.FileType.Directory:
        raise InputError(
            f"{path}: is a file, but a draft log is a folder of runs, each with a run.json"
        )
    entries = filesystem.get_file_info(fs.FileSelector(prefix))
    folders = sorted(entry.path for entry in entries if entry.type == fs.FileType.Directory)
    candidates = [prefix, *folders]
    found = [c for c in candidates if filesystem.get_file_info(f"{c}/run.json").is_file]
    if prefix in found:
        found = [prefix]
    if not found:
        below = [folder for folder in folders if _holds_a_run(folder, filesystem)]
        way_out = (
            f"it holds folders of logs, so name one: {_list_logs(path, below)}"
            if below
            else "make one with `draftlab collect --out DIR`"
        )
        raise InputError(
            f"{path}: holds no draft log (neither it nor a folder in it has a run.json); {way_out}"
        )
    return dict.fromkeys(found, filesystem)


def _holds_a_run(folder: str, filesystem: fs.FileSystem) -> bool:
    try:
        entries = filesystem.get_file_info(fs.FileSelector(folder))
    except OSError:  # not ours to read
        return False
    runs = (entry.path for entry in entries if entry.type == fs.FileType.Directory)
    return any(filesystem.get_file_info(f"{run}/run.json").is_file for run in runs)


def _list_logs(path: str | Path, folders: Sequence[str]) -> str:
    names = [f"{str(path).rstrip('/')}/{folder.rpartition('/')[2]}" for folder in folders]
    more = len(names) - _LOGS_NAMED
    return ", ".join(names[:_LOGS_NAMED]) + (f" and {more} more" if more > 0 else "")


_LOGS_NAMED = 5
"""Logs that an error names."""


def _filesystem(path: str | Path) -> tuple[fs.FileSystem, str]:
    text = str(path)
    if "://" not in text:
        return fs.LocalFileSystem(), str(Path(text).expanduser().absolute())
    try:
        filesystem, prefix = fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{text}: cannot be opened: {error}") from error
    return filesystem, prefix.rstrip("/")


def _open_run(folder: str, filesystem: fs.FileSystem) -> tuple[Run, list[Problem]]:
    metadata, mark = _read_metadata(folder, filesystem)
    digest = hashlib.sha256(mark)
    parts: dict[str, tuple[str, ...]] = {}
    rows: dict[str, int] = {}
    problems: list[Problem] = []
    unfinished: list[str] = []
    for table in schema.TABLES:
        readable: list[str] = []
        count = 0
        for path in _list_files(f"{folder}/{table}", filesystem):
            if path.endswith(TEMPORARY):
                unfinished.append(path)
            elif path.endswith(".parquet"):
                try:
                    rows_of_part, footer = _check_part(path, table, filesystem)
                except (pa.ArrowInvalid, OSError) as error:
                    why = str(error).strip().rstrip(".")
                    problems.append(
                        Problem(_uri(path, filesystem), f"not a readable Parquet file: {why}")
                    )
                else:
                    count += rows_of_part
                    digest.update(f"{table}/{path.rpartition('/')[2]}".encode() + footer)
                    readable.append(_uri(path, filesystem))
        parts[table], rows[table] = tuple(readable), count
    broken = [p for p in problems if "/drafts/" in p.path]
    if broken and not parts["drafts"]:
        raise InputError(f"{broken[0].path}: {broken[0].message}; no other part holds drafts")
    name = str(metadata["run"])
    place = _uri(folder, filesystem)
    run = Run(name, place, metadata, parts, rows, tuple(unfinished), digest.hexdigest())
    return run, problems


def _read_metadata(folder: str, filesystem: fs.FileSystem) -> tuple[dict[str, Any], bytes]:
    """Return run.json, parsed and as bytes."""
    path = f"{folder}/run.json"
    with filesystem.open_input_stream(path) as stream:
        text: bytes = stream.readall()
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    missing = [
        c.name
        for c in schema.RUN
        if c.null is None and (not isinstance(metadata, dict) or metadata.get(c.name) is None)
    ]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}")
    version = metadata["schema_version"]
    if version != schema.VERSION:
        raise InputError(
            f"{path}: has log version {version}, this draftlab reads version {schema.VERSION}"
        )
    return dict(metadata), text


def find_parts(folder: str | Path, table: str) -> list[str]:
    """Return the Parquet files of a table of a run, as paths or URIs; none where it is absent."""
    filesystem, prefix = _filesystem(folder)
    files = _list_files(f"{prefix}/{table}", filesystem)
    return [_uri(path, filesystem) for path in files if path.endswith(".parquet")]


def _list_files(folder: str, filesystem: fs.FileSystem) -> list[str]:
    selector = fs.FileSelector(folder, allow_not_found=True)
    return sorted(e.path for e in filesystem.get_file_info(selector) if e.is_file)


def _check_part(path: str, table: str, filesystem: fs.FileSystem) -> tuple[int, bytes]:
    """Return the rows and the footer of a part that fits the schema; raise where it does not.

    The footer comes with its place in the file, hence with the size of all before it.
    """
    with filesystem.open_input_file(path) as stream:
        footer = pq.ParquetFile(stream)
        size = stream.size()
        length = footer.metadata.serialized_size + _FOOTER_TAIL
        stream.seek(size - length)
        content: bytes = str(size).encode() + stream.read(length)
        found = footer.schema_arrow
        rows: int = footer.metadata.num_rows
    types = dict(zip(found.names, found.types, strict=True))
    missing = [name for name in schema.required_columns(table) if name not in types]
    if missing:
        raise InputError(
            f"{path}: lacks {_plural('column', missing)} of {table} (log version {schema.VERSION})"
        )
    for column in schema.TABLES[table]:
        if column.name in types and not _fits(types[column.name], column.dtype):
            raise InputError(
                f"{path}: column {column.name} has type {types[column.name]}, wanted "
                f"{column.dtype} (log version {schema.VERSION})"
            )
    return rows, content


def _fits(found: pa.DataType, wanted: str) -> bool:
    if pa.types.is_null(found):
        return True
    if "int" in wanted:
        return bool(pa.types.is_integer(found))
    if wanted.startswith("float"):
        return bool(pa.types.is_floating(found))
    if wanted == "bool":
        return bool(pa.types.is_boolean(found))
    value = found.value_type if pa.types.is_dictionary(found) else found
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(value) for test in text)


def _plural(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _uri(path: str, filesystem: fs.FileSystem) -> str:
    scheme = {"s3": "s3", "gcs": "gs", "abfs": "abfs"}.get(filesystem.type_name)
    return path if scheme is None else f"{scheme}://{path}"


def _refuse_twice(runs: Iterable[Run]) -> None:
    seen: dict[str, str] = {}
    for run in runs:
        if run.name in seen:
            raise InputError(
                f"run {run.name} is given twice ({seen[run.name]} and {run.path}): rows of one "
                "name would count double; name it once, or give the other another name in run.json"
            )
        seen[run.name] = run.path
