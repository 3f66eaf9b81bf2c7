"""Parts of the documentation that are made from the code, written into the pages in place.

What stands between `<!-- generated: KIND ARGUMENT -->` and `<!-- end -->` is what `KINDS` makes of
it, so that no option, column or number is written by hand.
Run: python docs/generate.py
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import typer.main

import draftlab
from draftlab import schema
from draftlab.cli import app
from draftlab.studies import result_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from draftlab.predictors.baselines import Predictor
    from draftlab.predictors.survival import SurvivalPredictor

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPRODUCTION = ROOT / "reports" / "reproduction"
MARK = re.compile(
    r"^<!-- generated: (\S+) ?(.*?) -->\n((?:(?!<!--).*\n)*)<!-- end -->$", re.MULTILINE
)
"""Kind, argument and what stands there; a mark without its end is none."""
WIDTH = 140


class Part(NamedTuple):
    """A generated part of a page."""

    kind: str
    argument: str
    text: str
    """As it stands in the page."""

    def make(self) -> str:
        """Return the text as it should be."""
        return f"\n{KINDS[self.kind](self.argument).strip()}\n\n"


def parts(markdown: str) -> list[Part]:
    return [Part(*found) for found in MARK.findall(markdown)]


def fill(markdown: str) -> str:
    """Return a page with every part made again."""

    def made(mark: re.Match[str]) -> str:
        first, *_ = mark[0].splitlines()
        return f"{first}\n{Part(*mark.groups()).make()}<!-- end -->"

    return MARK.sub(made, markdown)


def main() -> None:
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = fill(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


# ---------------------------------------------------------------- commands


@functools.cache
def commands() -> dict[str, Any]:
    """Return the commands by name, as typer holds them."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def list_commands(_: str) -> str:
    rows = [(f"[{name}](commands/{name}.md)", command.help) for name, command in commands().items()]
    return table(("command", "does"), rows)


def list_options(name: str) -> str:
    command = commands()[name]
    types = get_type_hints(command.callback)
    rows = [
        (spell(param, types.get(param.name)), meaning(param), default_of(param))
        for param in command.params
        if "--help" not in param.opts
    ]
    return table(("argument or option", "meaning", "default"), rows)


def spell(param: Any, annotation: object) -> str:
    """Return how a parameter is written."""
    if param.param_type_name == "argument":
        return f"`{(param.metavar or param.name).upper()}`"
    names = "/".join([*param.opts, *param.secondary_opts])
    kind = re.search(r"\b(int|float|Path)\b", str(annotation))
    return f"`{names}`" if param.is_flag else f"`{names} {kind[1].upper() if kind else 'TEXT'}`"


def meaning(param: Any) -> str:
    """Return a parameter's help without the default that it may spell out."""
    text = re.sub(r" ?\[default: .*?\]$", "", param.help or "")
    return text or {"seed": "Seed of everything random."}.get(param.name, "")


def default_of(param: Any) -> str:
    """Return the default as the help says it."""
    said = re.search(r"\[default: (.*?)\]$", param.help or "")
    if said:
        return said[1]
    if param.required:
        return "must be given"
    if param.default is None or param.default is False or callable(param.default):
        return "off" if param.param_type_name == "option" and param.is_flag else "none"
    return "on" if param.default is True else f"`{param.default}`"


def list_results(name: str) -> str:
    """Say what the tables of a command's result hold."""
    found = result_class(name)
    module = sys.modules[found.__module__]
    meanings = found.meanings().items()
    return "\n".join(f"**`{table}`**: {follow(text, module)}\n" for table, text in meanings)


def follow(text: str, module: ModuleType) -> str:
    """Put what a function returns in the place of a reference to it, as in `there.make_table`."""
    reference = re.search(r"(?:[Ss]ee )?`[\w.]+\.(\w+)`", text)
    function = getattr(module, reference[1], None) if reference else None
    if reference is None or function is None:
        return text
    section = inspect.cleandoc(function.__doc__).partition("Returns\n-------\n")[2]
    _, *columns = section.partition("\n\n")[0].split("\n")  # the first line is the type
    return text.replace(reference[0], " ".join(" ".join(columns).split()).rstrip("."))


@functools.cache
def show_output(argument: str) -> str:
    """Run a command in the repository and return it with what it prints; N cuts after N lines."""
    limit, _, rest = argument.partition(" ")
    command = rest if limit.isdigit() else argument
    name, *arguments = shlex.split(command)
    assert name == "draftlab", command
    done = subprocess.run(
        [sys.executable, "-m", "draftlab", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}: {done.stderr}")
    lines = [line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines()]
    if limit.isdigit() and len(lines) > int(limit):
        lines = [*lines[: int(limit)], "..."]
    return "\n".join(["```text", f"$ {command}", *lines, "```"])


# ---------------------------------------------------------------- the log


def list_columns(name: str) -> str:
    columns = schema.DISTRIBUTIONS if name == "distributions" else schema.TABLES[name]
    rows = [
        (
            f"`{column.name}`",
            column.dtype,
            column.doc,
            column.null or "never null",
            "yes" if column.required else "may be absent",
        )
        for column in columns
    ]
    return table(("column", "type", "meaning", "null means", "in every file"), rows)


def list_reveals(_: str) -> str:
    words = {"q": "q", "draw": "the drawn token", "p": "p", "outcome": "the outcome"}
    rows = [
        (f"`{column.name}`", ", ".join(words[what] for what in words if what in column.reveals))
        for column in schema.DRAFTS
        if column.reveals
    ]
    return table(("column", "reveals"), rows)


def list_run_keys(_: str) -> str:
    rows = [(f"`{key.name}`", key.dtype, key.doc, key.null or "never null") for key in schema.RUN]
    return table(("key", "type", "meaning", "null means"), rows)


def list_excluded(_: str) -> str:
    rows = [(int(bit), f"`{bit.name}`".lower(), text) for bit, text in schema.EXCLUDED.items()]
    return table(("bit", "name", "a row"), rows)


def list_checks(_: str) -> str:
    from draftlab.log.checks import CHECKS

    return table(("code", "finds", "severity"), [(c.code, c.title, c.severity) for c in CHECKS])


# ---------------------------------------------------------------- tables of the code


def list_predictors(_: str) -> str:
    from draftlab.predictors.baselines import PREDICTORS
    from draftlab.predictors.survival import SURVIVAL

    def last(survival: SurvivalPredictor) -> Predictor:
        return PREDICTORS[survival.at_draw]

    yes = {True: "yes", False: "no"}
    rows = [
        (f"`{p.name}`", p.doc, yes[p.fitted], yes[p.lossless("probabilistic")])
        for p in PREDICTORS.values()
    ]
    survival = [
        (f"`{p.name}`", f"survival: {p.doc}", "its parts", yes[last(p).lossless("probabilistic")])
        for p in SURVIVAL.values()
    ]
    return table(("predictor", "what it is", "fitted", "lossless"), rows + survival)


def list_estimators(_: str) -> str:
    from draftlab.online.rivals import DEFAULT_ESTIMATORS, ESTIMATORS

    rows = [
        (f"`{name}`", entry.doc, "yes" if name in DEFAULT_ESTIMATORS else "no")
        for name, entry in ESTIMATORS.items()
    ]
    return table(("estimator", "what it is", "by default"), rows)


def list_policies(_: str) -> str:
    from draftlab.studies.simulate.policies import POLICIES

    return table(("policy", "what it is"), [(f"`{p.name}`", p.doc) for p in POLICIES.values()])


def list_costs(_: str) -> str:
    from draftlab.policies.cost import HARDWARE, MODELS

    hardware, models = (", ".join(f"`{name}`" for name in names) for names in (HARDWARE, MODELS))
    return f"- HARDWARE: {hardware}\n- MODEL: {models}"


def list_layers(_: str) -> str:
    """Return the floors that the arrows of the test of imports make."""
    spec = importlib.util.spec_from_file_location("arrows", ROOT / "tests/test_architecture.py")
    assert spec is not None
    assert spec.loader is not None
    arrows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arrows)
    allowed: dict[str, set[str]] = arrows.MAY_IMPORT

    @functools.cache
    def floor(part: str) -> int:
        above = [other for other, imported in allowed.items() if part in imported]
        return 1 + max(map(floor, above), default=0)

    floors: dict[int, list[str]] = {}
    for part in allowed:
        floors.setdefault(floor(part), []).append(f"`{part}`")
    rows = [(level, ", ".join(parts)) for level, parts in sorted(floors.items())]
    return table(("layer", "parts"), rows)


# ---------------------------------------------------------------- Python


def list_api(_: str) -> str:
    """Return the public functions with their signatures and docstrings, as Markdown."""
    names = [name for name in draftlab.__all__ if name not in ("__version__", "metrics")]
    parts = [describe_api(f"draftlab.{name}", getattr(draftlab, name)) for name in names]
    metrics = [
        describe_api(f"draftlab.metrics.{name}", getattr(draftlab.metrics, name))
        for name in ("auc", "log_loss", "brier", "ece", "smooth_ece")
    ]
    return "\n".join([*parts, *metrics])


def describe_api(name: str, entry: Any) -> str:
    if isinstance(entry, type) and issubclass(entry, Exception):
        return f"## {name}\n\n{inspect.cleandoc(entry.__doc__ or '')}\n"
    signature = inspect.signature(entry)
    arguments = [str(value).replace("'", "") for value in signature.parameters.values()]
    kinds = [value.kind for value in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    marked = [f"    {argument}," for argument in arguments]
    returns = signature.return_annotation
    ends = f") -> {returns}" if isinstance(returns, str) else ")"
    code = "\n".join([f"{name}(", *marked, ends]) if marked else f"{name}()"
    text = describe_docstring(inspect.cleandoc(entry.__doc__ or ""))
    return f"## {name}\n\n```py\n{code}\n```\n\n{text}\n"


def describe_docstring(text: str) -> str:
    """Return a numpydoc docstring as Markdown: sections in bold, entries as lists."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", text, flags=re.MULTILINE)
    lines = [parts[0].strip(), ""]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        lines += [f"**{title}**", ""]
        if title == "Examples":
            lines += ["```pycon", body.strip(), "```", ""]
        else:
            lines += [*describe_entries(body.strip()), ""]
    return re.sub(r"``(.+?)``", r"`\1`", "\n".join(lines)).strip()


def describe_entries(body: str) -> list[str]:
    entries: list[str] = []
    for line in body.splitlines():
        if line and not line.startswith(" "):
            entries.append(f"- `{line}`")
        elif line.strip():
            entries[-1] += f"{':' if entries[-1].endswith('`') else ''} {line.strip()}"
    return entries


# ---------------------------------------------------------------- published tables


def list_published(_: str) -> str:
    from draftlab.published import PUBLISHED

    rows = [(t.name, t.title, t.source) for t in PUBLISHED.values()]
    return table(("table", "what it shows", "source"), rows)


def show_verdicts(_: str) -> str:
    """Return what `make reproduce` found, each item a link to its numbers."""
    text = (REPRODUCTION / "verdicts.md").read_text(encoding="utf-8")
    _, _, text = text.split("\n\n", 2)  # after the title and what the page says of itself
    pages = "|".join(path.stem for path in REPRODUCTION.glob("*.md"))
    link = r"| [\1](../reports/reproduction/\1.md) |"
    return re.sub(rf"^\| ({pages}) \|", link, text, flags=re.MULTILINE)


KINDS: dict[str, Callable[[str], str]] = {
    "commands": list_commands,
    "options": list_options,
    "results": list_results,
    "output": show_output,
    "columns": list_columns,
    "reveals": list_reveals,
    "run-keys": list_run_keys,
    "excluded": list_excluded,
    "checks": list_checks,
    "predictors": list_predictors,
    "estimators": list_estimators,
    "policies": list_policies,
    "costs": list_costs,
    "api": list_api,
    "layers": list_layers,
    "published": list_published,
    "verdicts": show_verdicts,
}
"""What a mark can name, and what makes it."""


if __name__ == "__main__":
    main()
