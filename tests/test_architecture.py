"""Imports point down only, and stay cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import draftlab

PACKAGE = Path(draftlab.__file__).parent

BASE = {"schema", "metrics", "parallel", "provenance", "published", "errors", "_types"}
DATA = {"log", "features", "synth"} | BASE
ARRAYS = {"features", "schema", "metrics", "parallel", "errors", "_types"}
"""What works on arrays: it never sees a path."""
GRADING = {"predictors", "policies", "online", "plugins", "results"} | DATA
STUDIES = {"grading", "regression"} | GRADING
MAY_IMPORT: dict[str, set[str]] = {
    "_types": set(),
    "errors": set(),
    "published": set(),
    "parallel": set(),
    "schema": {"errors"},
    "provenance": {"errors"},
    "metrics": {"_types"},
    "features": {"schema", "errors", "_types"},
    "log": {"features", "schema", "metrics", "provenance", "errors", "_types"},
    "synth": {"log", "features", "schema", "provenance", "errors", "_types"},
    "predictors": ARRAYS,
    "online": ARRAYS,
    "policies": {"predictors", "online"} | ARRAYS,
    "plugins": {"predictors"} | ARRAYS,
    "regression": {"predictors"} | ARRAYS,
    "results": {"log", "errors", "provenance", "_types"},
    "grading": GRADING,
    "studies": STUDIES,
    "reporting": {"studies"} | STUDIES,
    "hooks": {"schema", "log", "errors", "provenance"},
    "engine": {"schema", "log", "errors", "provenance"},
    "engines": {"reporting", "studies", "engine", "hooks"} | STUDIES,
    "cli": {"engines", "reporting", "studies", "hooks"} | STUDIES,
    "__main__": {"cli"},
}
"""Every arrow that there may be, by part; none points up, and no two parts point at each other."""
STUDIES_MAY_IMPORT: dict[str, set[str]] = {
    "evaluate": set(),
    "calibrate": set(),
    "inspect": set(),
    "replay": set(),
    "compare": {"evaluate"},
    "stability": {"evaluate"},
    "audit": {"evaluate"},
    "simulate": {"evaluate"},
}
"""No study imports another, except what `evaluate` fits and grades."""
HEAVY = ("torch", "transformers", "gguf", "vllm")


def imports(folder: Path, package: str) -> dict[str, set[str]]:
    """Return what each part of a package imports of its other parts, at any depth of the code."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        mine = found.setdefault(part, set())
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            below = [name.removeprefix(f"{package}.") for name in names if f"{package}." in name]
            mine |= {name.split(".")[0] for name in below} - {part}
    # what the package itself hands on, such as draftlab.evaluate, is no part of it
    return {part: mine & set(found) for part, mine in found.items()}


@pytest.mark.slow
def test_imports_point_down() -> None:
    found = imports(PACKAGE, "draftlab")
    assert set(found) == set(MAY_IMPORT)
    for part, imported in found.items():
        assert imported <= MAY_IMPORT[part], f"{part} imports {imported - MAY_IMPORT[part]}"


def test_no_arrow_has_its_reverse() -> None:
    for part, allowed in MAY_IMPORT.items():
        for other in allowed:
            assert part not in MAY_IMPORT[other], f"{part} and {other}"


def test_studies_do_not_import_one_another() -> None:
    found = imports(PACKAGE / "studies", "draftlab.studies")
    assert set(found) == set(STUDIES_MAY_IMPORT)
    for study, imported in found.items():
        assert imported <= STUDIES_MAY_IMPORT[study], f"{study} imports {imported}"


def test_the_top_of_the_package_stays_small() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 14


@pytest.mark.parametrize("module", ["draftlab", "draftlab.cli"])
def test_the_command_line_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "polars", "sklearn", "matplotlib", "scipy")
    code = f"import {module}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_everything_but_the_engine_works_without_its_extra() -> None:
    """Evaluate the sample in an interpreter in which the extra's packages cannot be imported."""
    code = f"""
import sys
sys.modules |= dict.fromkeys({HEAVY!r})  # an import of any of them fails
import draftlab
print(draftlab.evaluate("data/sample-t1").metrics.height)
"""
    root = PACKAGE.parent
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert int(out.stdout) > 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = draftlab.nothing


@pytest.mark.parametrize("name", [n for n in draftlab.__all__ if n != "__version__"])
def test_no_module_has_the_name_of_a_public_function(name: str) -> None:
    assert not (PACKAGE / f"{name}.py").exists()
