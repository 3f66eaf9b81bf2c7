"""What every study returns: tables with their meaning, notes, settings and provenance, on disk too.

``OUT/<command>/`` holds one Parquet file a table, and result.json with what each table means and
the rest. What is read back equals what was written, so a page can be made where the log is not. A
result knows what it was made from: `key_of` is equal for calls that must give the same result.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

import polars as pl

from draftlab import provenance
from draftlab.errors import InputError
from draftlab.log.files import replace_file, to_records, write_json
from draftlab.log.reader import DraftLog, open_any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.figure import Figure

FORMAT = 1
"""Of result.json and the tables beside it; a change that a reader must know of raises it."""
_FILE = "result.json"
_MEANING = "meaning"
_BULKY = "bulky"
_LEFT_OUT = "left_out"
_BASE = ("notes", "settings", "provenance")
_NOT_OPTIONS = ("out", "on_done", "where")
"""Parameters of a study that change nothing in its result; ``where`` is part of its logs."""
_LOGS = ("log", "a", "b", "trimmed")

P = ParamSpec("P")
R = TypeVar("R", bound="Result")


@dataclass(frozen=True)
class Note:
    """What a reader must know of a result: a stable code, and a sentence."""

    code: str
    text: str
    run: str = ""
    """Run or cell that it is about; empty: all."""

    def __str__(self) -> str:
        """Return the sentence, behind the run that it is about."""
        return f"{self.run}: {self.text}" if self.run else self.text


def tidy(meaning: str, *, bulky: bool = False) -> Any:
    """Return the field of a table: its meaning stands in the docs and in reprs.

    A bulky one is written as Parquet only; it may be None where it was not asked for.
    """
    return dataclasses.field(metadata={_MEANING: " ".join(meaning.split()), _BULKY: bulky})


def as_names(names: str | Sequence[str] | None) -> list[str] | None:
    """Return one name or several as a list; None stays None, which mostly means all."""
    return names if names is None else [names] if isinstance(names, str) else list(names)


def unreadable_notes(log: DraftLog) -> list[Note]:
    """Return a note for each part of a log that could not be read."""
    return [
        Note("unreadable", f"{problem.place}: {problem.message}; its rows are missing")
        for problem in log.problems
    ]


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Result:
    """Base of every study's result: polars tables as attributes, and where they come from.

    Undefined numbers are NaN beside their counts; a null in ``dataset`` or ``position`` is all.
    """

    command: ClassVar[str]
    """Name of the study, its command and its folder."""
    verdicts: ClassVar[tuple[str, ...]] = ()
    """Properties that stand in the JSON beside the tables they are derived from."""

    notes: list[Note]
    settings: dict[str, Any]
    provenance: dict[str, Any]

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Return what each table holds, by name."""
        found = {f.name: f.metadata.get(_MEANING) for f in dataclasses.fields(cls)}
        return {name: meaning for name, meaning in found.items() if meaning is not None}

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables by name; one that was not asked for is left out."""
        found = {name: getattr(self, name) for name in self.meanings()}
        return {name: frame for name, frame in found.items() if frame is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return everything but bulky tables as strict JSON content, NaN as null."""
        bulky = self._bulky()
        tables = {n: to_records(frame) for n, frame in self.tables.items() if n not in bulky}
        return self._about() | tables | {"provenance": self.provenance}

    def _about(self) -> dict[str, Any]:
        """Return everything but tables and provenance."""
        head = {
            "command": self.command,
            "format": FORMAT,
            "settings": self.settings,
            "notes": [dataclasses.asdict(note) for note in self.notes],
        }
        facts = {name: _plain(getattr(self, name)) for name in (*self._facts(), *self.verdicts)}
        return head | facts

    def write(self, out: str | Path) -> Path:
        """Write OUT/<command>/*.parquet and result.json, each atomically; return the folder."""
        folder = Path(out) / self.command
        for name in self.meanings():
            frame = self.tables.get(name)
            if frame is None:
                (folder / f"{name}.parquet").unlink(missing_ok=True)
            else:
                replace_file(folder / f"{name}.parquet", frame.write_parquet)
        self.write_more(folder)
        meanings = {"tables": {name: self.meanings()[name] for name in self.tables}}
        write_json(folder / _FILE, self._about() | meanings | {"provenance": self.provenance})
        return folder

    def write_more(self, folder: Path) -> None:
        """Write what users load elsewhere; nothing unless a study has such a file."""

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read what `write` wrote.

        Parameters
        ----------
        folder : path
            OUT, OUT/<command> or its result.json.

        Raises
        ------
        InputError
            No result of this study is there, a table is missing, or its format is another.
        """
        place = find_result(folder, cls.command)
        if place is None:
            raise InputError(f"{folder}: holds no result of `draftlab {cls.command}`")
        content = read_content(place)
        if _LEFT_OUT in content:
            raise InputError(f"{place}: {cls.command} was left out: {content[_LEFT_OUT]}")
        return cls(
            **{name: _read_table(place, name, name in cls._bulky()) for name in cls.meanings()},
            **cls.parse_facts({name: content.get(name) for name in cls._facts()}),
            notes=[Note(**note) for note in content["notes"]],
            settings=content["settings"],
            provenance=content["provenance"],
        )

    @classmethod
    def parse_facts(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that are no tables from what `to_dict` holds of them."""
        return facts

    def plot(self, name: str | None = None, **options: Any) -> Figure:
        """Draw one of the figures of this result; without a name the error lists them."""
        figure: Figure = _display().plot(self, name, **options)
        return figure

    def __repr__(self) -> str:
        """Return what a screen holds: the headline and the names of the tables."""
        return str(_display().to_text(self))

    def _repr_html_(self) -> str:
        return str(_display().to_html(self))

    @classmethod
    def _bulky(cls) -> set[str]:
        return {field.name for field in dataclasses.fields(cls) if field.metadata.get(_BULKY)}

    @classmethod
    def _facts(cls) -> list[str]:
        """Return the fields that are neither tables nor common to all results."""
        names = [field.name for field in dataclasses.fields(cls) if _MEANING not in field.metadata]
        return [name for name in names if name not in _BASE]


def find_result(folder: str | Path, command: str) -> Path | None:
    """Return the folder of a study's result at OUT, OUT/<command> or a result.json; else None."""
    place = Path(folder)
    place = place.parent if place.name == _FILE else place
    for candidate in (place / command, place):
        if (candidate / _FILE).is_file() and read_content(candidate).get("command") == command:
            return candidate
    return None


def read_content(folder: Path) -> dict[str, Any]:
    """Return result.json of a folder.

    Raises
    ------
    InputError
        It is not JSON, or of another format.
    """
    path = folder / _FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise InputError(
            f"{path}: has result format {found}, this draftlab reads format {FORMAT}; make the "
            "result again"
        )
    return content


def write_left_out(out: str | Path, command: str, reason: str, key: str) -> None:
    """Write in the place of a result why there is none, so that it need not be tried again."""
    folder = Path(out) / command
    for path in folder.glob("*.parquet"):
        path.unlink()
    content = {"command": command, "format": FORMAT, _LEFT_OUT: reason, "provenance": {"key": key}}
    write_json(folder / _FILE, content)


def left_out(folder: Path) -> str | None:
    """Return why a folder holds no result, where that is what it holds."""
    reason: str | None = read_content(folder).get(_LEFT_OUT)
    return reason


def stored_key(folder: Path) -> str | None:
    """Return the `key_of` the call that a stored result is of."""
    key: str | None = read_content(folder).get("provenance", {}).get("key")
    return key


def _plain(value: Any) -> Any:
    """Return a fact as JSON has it: dataclasses as objects, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _read_table(folder: Path, name: str, optional: bool) -> pl.DataFrame | None:
    path = folder / f"{name}.parquet"
    if not path.is_file():
        if optional:
            return None
        raise InputError(f"{path}: is missing; make the result again")
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: is no readable table: {error}") from error


def study(function: Callable[P, R]) -> Callable[P, R]:
    """Do what all studies do alike: open logs, state where the result is from, write it.

    A study's parameters of these names are meant: ``log``, ``a``, ``b`` and ``trimmed`` are logs,
    narrowed by ``where``, which the settings then say; below ``out`` the result is written.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        logs = _open_logs(bound.arguments)
        bound.arguments.update(logs)
        if "where" in bound.arguments:
            bound.arguments["where"] = None  # the logs are narrowed already
        result = function(*bound.args, **bound.kwargs)
        origin = provenance.collect(
            log=[run.path for log in logs.values() for run in log.runs],
            fingerprint=[log.fingerprint for log in logs.values()],
            key=provenance.key_of_call(function, _options(bound.arguments)),
        )
        part = _part_of(logs) if "where" in signature.parameters else {}
        made = dataclasses.replace(
            result, settings=result.settings | part, provenance=origin | result.provenance
        )
        if bound.arguments.get("out") is not None:
            made.write(bound.arguments["out"])
        return made

    return run


def key_of(function: Callable[..., Result], *args: Any, **kwargs: Any) -> str:
    """Return the key of the result that a call of a study would have.

    It covers the study and its options, the fingerprint of its logs (run.json, sizes and footers
    of the parts), the files of plugins and cost tables, and the package's own source.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments | _open_logs(bound.arguments)
    return provenance.key_of_call(function, _options(arguments))


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in _NOT_OPTIONS}


def _open_logs(arguments: Mapping[str, Any]) -> dict[str, DraftLog]:
    found = {name: arguments[name] for name in _LOGS if arguments.get(name) is not None}
    return {name: open_any(log, arguments.get("where")) for name, log in found.items()}


def _part_of(logs: Mapping[str, DraftLog]) -> dict[str, Any]:
    """Return the setting that says which part of its logs a result is of; none of whole logs."""
    parts = {name: log.where for name, log in logs.items()}
    texts = set(parts.values())
    if texts <= {None}:
        return {}
    return {"where": texts.pop() if len(texts) == 1 else parts}


def _display() -> Any:
    """Return what shows results: it stands above, so it is loaded by name and on use."""
    return import_module("draftlab.reporting.display")
