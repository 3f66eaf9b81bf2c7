"""Imports point down only, and stay cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import draftlab

PACKAGE = Path(draftlab.__file__).parent

# From the top down; a module may import from its own layer and from those below.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "__main__"),
    ("reporting",),
    ("drifting", "sweeping"),
    ("structuring", "calibrating", "comparing"),
    ("evaluation", "replaying", "simulation", "auditing", "livecheck"),
    (
        "predictors",
        "online",
        "policies",
        "cells",
        "folds",
        "rows",
        "grading",
        "differences",
        "refitting",
        "surviving",
        "stationarity",
        "transfer",
        "regression",
        "plugins",
    ),
    ("log", "features", "synth"),
    ("schema", "metrics", "intervals", "threads", "processes", "provenance", "published", "errors"),
)
BESIDE = ("engine", "hooks")
BESIDE_MAY_IMPORT = {"engine", "hooks", "schema", "log", "errors", "provenance"}
HEAVY = ("torch", "transformers", "gguf", "vllm")


def modules() -> dict[str, set[str]]:
    """Return what each top-level part of the package imports of the package, at any depth."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "draftlab":
                    names = [f"draftlab.{alias.name}" for alias in node.names]
            for name in names:
                pieces = name.split(".")
                if pieces[0] == "draftlab" and len(pieces) > 1 and pieces[1] != "__version__":
                    found.setdefault(part, set()).add(pieces[1])
    return found


def level(part: str) -> int:
    [index] = [i for i, layer in enumerate(LAYERS) if part in layer]
    return index


def test_imports_point_down() -> None:
    for part, imported in modules().items():
        if part in BESIDE:
            assert imported <= BESIDE_MAY_IMPORT, part
            continue
        assert not set(BESIDE) & imported or part == "cli", part
        for other in imported - set(BESIDE):
            assert level(other) >= level(part), f"{part} imports {other}"


@pytest.mark.parametrize("module", ["draftlab", "draftlab.cli"])
def test_the_command_line_loads_nothing_heavy(module: str) -> None:
    heavy = ("torch", "polars", "sklearn", "matplotlib", "scipy")
    code = f"import {module}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


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
