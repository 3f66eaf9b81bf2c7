"""Look at a part of a log: an expression over requests, steps and the run chooses its rows.

The expression is SQL as polars reads it. It never reads the columns of `drafts`: what is chosen by
what a draft is, or by how it ended, would be graded on a biased sample.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from draftlab import schema
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from draftlab.log.reader import Run

TIME = "time"
"""Column that an expression sees beside those of `steps`: ``unix_ms`` as ISO 8601 text in UTC."""
_TIME = pl.from_epoch("unix_ms", time_unit="ms").dt.strftime("%Y-%m-%dT%H:%M:%S").alias(TIME)
_REQUESTS = tuple(column.name for column in schema.REQUESTS)
_STEPS = (*(column.name for column in schema.STEPS), TIME)
_DRAFTS = {column.name for column in (*schema.DRAFTS, *schema.TREES)} - {"request", "step"}
_WORD = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|[A-Za-z_]\w*(?:\s*\()?""")
_OPERATORS = frozenset(
    ("and", "or", "not", "in", "is", "like", "ilike", "between", "null", "true", "false", "case",
     "when", "then", "else", "end")
)  # fmt: skip
FUNCTIONS = frozenset(
    ("abs", "ceil", "coalesce", "ends_with", "floor", "left", "length", "lower", "nullif",
     "regexp_like", "right", "round", "starts_with", "substr", "upper")
)  # fmt: skip
"""Functions that an expression may call: each reads its own row alone."""


@dataclass(frozen=True)
class Where:
    """A parsed expression, with the columns that it reads."""

    text: str
    expr: pl.Expr = field(compare=False, repr=False)
    requests: tuple[str, ...]
    """Of `requests`; a name that several have is of the first of requests, steps and run."""
    steps: tuple[str, ...]
    """Of `steps`, or `TIME`."""
    run: tuple[str, ...]
    """Of `facts_of`."""

    def scan(self, run: Run, table: str) -> pl.LazyFrame:
        """Return the rows of a run's table that belong to the part.

        Of `drafts` and `trees` those whose request, step and run satisfy the expression. Requests
        and steps are asked themselves where it reads nothing else; otherwise requests stay that
        have a draft left, and all steps: the batch of a step holds other requests too.
        """
        rows = run.scan_whole(table)
        if table == "requests":
            if not self.steps:
                return self._filter(run, rows, rows)
            kept = self.keep(run, run.scan_whole("drafts")).select("request").unique()
            return rows.join(kept, on="request", how="semi", maintain_order="left")
        if table == "steps":
            return rows if self.requests else self._filter(run, rows.with_columns(_TIME), rows)
        return self.keep(run, rows)

    def keep(self, run: Run, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Return those of some rows with a request and a step that belong to the part, in order."""
        joined = rows.with_columns(pl.col("request", "step").cast(pl.Int64))
        for table, key, read in (
            ("requests", "request", self.requests),
            ("steps", "step", self.steps),
        ):
            if names := [name for name in read if name != key]:
                columns = read_columns(run, table, names)
                joined = joined.join(columns, on=key, how="left", maintain_order="left")
        return self._filter(run, joined, rows)

    def _filter(self, run: Run, rows: pl.LazyFrame, like: pl.LazyFrame) -> pl.LazyFrame:
        """Return the rows that satisfy the expression, with the columns of another frame."""
        facts = facts_of(run)
        literals = [pl.lit(facts.get(name)).alias(name) for name in self.run]
        kept = rows.with_columns(literals).filter(self.expr.cast(pl.Boolean))
        return kept.select(like.collect_schema().names())


def read_columns(run: Run, table: str, names: Sequence[str]) -> pl.LazyFrame:
    """Return columns of the whole ``requests`` or ``steps`` of a run behind their key, once each.

    ``time`` may be among those of steps.
    """
    key = table.removesuffix("s")
    rows = run.scan_whole(table)
    rows = rows.with_columns(_TIME) if TIME in names else rows
    return rows.select(key, *names).unique(key, keep="first", maintain_order=True)


def facts_of(run: Run) -> dict[str, Any]:
    """Return what is known of a run as a whole: its name, its pair and the scalars of run.json."""
    scalars = {
        name: value
        for name, value in run.metadata.items()
        if isinstance(value, str | int | float) and name not in _DRAFTS
    }
    return scalars | {"run": run.name, "pair": run.pair}


def known_names(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Return the names that an expression may read, by where they stand."""
    first = (*_REQUESTS, *_STEPS)
    of_runs = dict.fromkeys(name for run in runs for name in facts_of(run))
    of_runs |= dict.fromkeys(c.name for c in schema.RUN if c.dtype != "object")
    return {
        "requests": list(_REQUESTS),
        "steps": [name for name in _STEPS if name not in _REQUESTS],
        "run": [name for name in of_runs if name not in first],
    }


def name_columns(
    names: Iterable[str], runs: Sequence[Run], what: str, hint: str = ""
) -> dict[str, list[str]]:
    """Return names by where they stand.

    Raises
    ------
    InputError
        A name that no table has, or one of a column of drafts; ``what`` begins the sentence, a
        ``hint`` follows an unknown name.
    """
    known = known_names(runs)
    found: dict[str, list[str]] = {place: [] for place in known}
    for name in dict.fromkeys(names):
        place = next((place for place, there in known.items() if name in there), None)
        if place is not None:
            found[place].append(name)
            continue
        listed = "; ".join(f"{place}: {', '.join(there)}" for place, there in known.items())
        if name in _DRAFTS:
            raise InputError(
                f"{what}: {name} is a column of drafts, and rows chosen by it would be a biased "
                f"sample; known: {listed}"
            )
        raise InputError(f"{what}: unknown column {name!r}{hint}; "
                         f"known: {listed}")  # fmt: skip
    return found


def parse_where(text: str, runs: Sequence[Run]) -> Where:
    """Return a parsed expression.

    Parameters
    ----------
    text : str
        SQL as polars reads it, over columns of requests and steps, ``time`` and `facts_of`.
    runs : sequence of Run
        Whose run.json says which further names there are.

    Raises
    ------
    InputError
        What does not parse, reads other columns or other rows, or is neither true nor false.
    """
    what = f"--where {text}"
    quoted = _quote(text, {name for names in known_names(runs).values() for name in names}, what)
    try:
        expr = pl.sql_expr(quoted)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{what}: does not parse as SQL: {_first_line(error)}") from error
    places = name_columns(expr.meta.root_names(), runs, what, " (text stands in single quotes)")
    if not any(places.values()):
        raise InputError(f"{what}: reads no column of requests, steps or the run")
    where = Where(text, expr, *(tuple(names) for names in places.values()))
    for run in runs:
        _check_type(where, run, what)
    return where


def _quote(text: str, known: set[str], what: str) -> str:
    """Quote known names, some of which SQL keeps for itself; refuse what reads other rows."""

    def quote(found: re.Match[str]) -> str:
        word = found.group()
        name = word.rstrip("(").rstrip()
        if word[0] in "'\"" or name.lower() in _OPERATORS:
            return word
        if name.lower() == "select":
            raise InputError(f"{what}: a query inside it is not known here")
        if word.endswith("("):
            if name.lower() not in FUNCTIONS:
                listed = ", ".join(sorted(FUNCTIONS))
                raise InputError(f"{what}: unknown function {name!r}; known: {listed}")
            return word
        return f'"{word}"' if word in known else word

    return _WORD.sub(quote, text)


def _check_type(where: Where, run: Run, what: str) -> None:
    """Refuse an expression that is not true or false on the columns of a run."""
    empty = [
        run.scan_whole(table).limit(0).with_columns(_TIME) if table == "steps"
        else run.scan_whole(table).limit(0)
        for table in ("requests", "steps")
    ]  # fmt: skip
    facts = facts_of(run)
    columns = pl.concat(
        [frame.drop("run").collect() for frame in empty], how="horizontal"
    ).with_columns(pl.lit(facts.get(name)).alias(name) for name in where.run)
    try:
        [dtype] = columns.select(where.expr).dtypes
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{what}: {_first_line(error)}") from error
    if dtype not in (pl.Boolean, pl.Null):
        raise InputError(f"{what}: is {dtype}, wanted a comparison that is true or false")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


def narrow_runs(runs: Sequence[Run], text: str) -> tuple[Run, ...]:
    """Return the runs that have a draft in the part, each of which hands out its rows alone.

    Raises
    ------
    InputError
        Of `parse_where`; or no run, or no draft of the runs, is in the part.
    """
    where = parse_where(text, runs)
    if not (where.requests or where.steps):
        kept = [run for run in runs if _satisfies(where, run)]
        if not kept:
            raise InputError(f"--where {text}: keeps none of {len(runs)} runs")
        return tuple(kept)
    narrowed = [_narrow(run, where) for run in runs]
    kept = [run for run in narrowed if run.rows["drafts"]]
    if not kept:
        total = sum(run.rows["drafts"] for run in runs)
        raise InputError(f"--where {text}: keeps none of {total} drafts")
    return tuple(kept)


def _satisfies(where: Where, run: Run) -> bool:
    facts = facts_of(run)
    row = pl.DataFrame([pl.Series(name, [facts.get(name)]) for name in where.run])
    return bool(row.select(where.expr.cast(pl.Boolean)).item())


def _narrow(run: Run, where: Where) -> Run:
    narrowed = replace(run, where=where)
    counts = [narrowed.scan(table).select(pl.len()) for table in schema.TABLES]
    try:
        found = pl.collect_all(counts)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"--where {where.text}: {_first_line(error)}") from error
    rows = {name: int(n.item()) for name, n in zip(schema.TABLES, found, strict=True)}
    return replace(narrowed, rows=rows)
