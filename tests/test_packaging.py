"""What surrounds the package: one version, true paths, workflows that call what exists."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from typing import Any

import pytest

import draftlab
from tests.paths import ROOT

SURFACE = ("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


# --- the version is stated once


def test_the_version_is_stated_in_the_package_alone() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    source = read(PROJECT["tool"]["hatch"]["version"]["path"])
    assert re.findall(r'^__version__ = "(.+)"$', source, re.M) == [draftlab.__version__]


def test_the_installed_version_is_that_of_the_package() -> None:
    stale = "run `pip install --editable .` again: results are stamped with the installed version"
    assert metadata.version("draftlab") == draftlab.__version__, stale


def test_the_citation_names_the_version_and_the_licence() -> None:
    citation = dict(re.findall(r'^([\w-]+): "?([^"\n]+)"?$', read("CITATION.cff"), re.M))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == draftlab.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    authors = [author["name"] for author in PROJECT["project"]["authors"]]
    assert re.findall(r"^  - name: (.+)$", read("CITATION.cff"), re.M) == authors


def test_the_changelog_has_the_version() -> None:
    assert re.search(rf"^## {re.escape(draftlab.__version__)}\b", read("CHANGELOG.md"), re.M)


# --- pages for contributors


def paths(text: str) -> list[str]:
    """Return every path with a slash that a page names, as a link, in code or in a sentence."""
    return re.findall(r"(?<![\w./-])\.?\w[\w.-]*/[\w./-]*(?<![.-])", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `a/b.py`, [c](docs/c.md#d) or .ci/run.", ["a/b.py", "docs/c.md", ".ci/run"]),
        ("the folder `a/` and a/b/.", ["a/", "a/b/"]),
        ("one word, `b.py` and --strict", []),
    ],
)
def test_paths_are_found(text: str, expected: list[str]) -> None:
    assert paths(text) == expected


@pytest.mark.parametrize("page", SURFACE)
def test_the_paths_that_a_page_names_exist(page: str) -> None:
    made = (".venv/",)  # by `make install`
    for path in paths(read(page)):
        assert path.startswith(made) or (ROOT / path).exists(), path


def test_the_names_in_a_recipe_stand_in_one_of_its_files() -> None:
    recipes = re.findall(r"^- \*\*(.+?)\.\*\* (.*(?:\n  .*)*)", read("CONTRIBUTING.md"), re.M)
    assert len(recipes) >= 8
    for title, text in recipes:
        files = [ROOT / path for path in paths(text) if (ROOT / path).suffix == ".py"]
        code = "\n".join(file.read_text(encoding="utf-8") for file in files)
        for word in re.findall(r"`([A-Z]\w+)`", text):
            assert re.search(rf"\b{word}\b", code), f"{title}: {word}"


def test_the_workflow_covers_every_supported_python() -> None:
    workflow = read(".github/workflows/ci.yml")
    [matrix] = re.findall(r"python: \[(.+)\]", workflow)
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"[\d.]+", matrix)]
    assert PROJECT["project"]["requires-python"] == ">={}.{}".format(*versions[0])
    assert versions == [(3, minor) for minor in range(versions[0][1], versions[-1][1] + 1)]
    assert "run: .ci/run" in workflow
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_no_page_points_to_an_address() -> None:
    """There is no public repository and no mailbox yet; an invented one misleads."""
    for page in (*SURFACE, "CITATION.cff", ".github/ISSUE_TEMPLATE/bug.yml"):
        assert not re.search(r"https?://|@\w+\.\w+", read(page).replace("@pytest.mark", "")), page
    assert "urls" not in PROJECT["project"]
