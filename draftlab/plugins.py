"""A user's own features, predictors and metrics: a Python file, its tables merged explicitly."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from draftlab.errors import InputError
from draftlab.features import FEATURES, Feature
from draftlab.predictors.baselines import PREDICTORS, Predictor
from draftlab.predictors.logistic import fit_logistic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from draftlab._types import BoolArray, FloatArray

TABLES = ("FEATURES", "PREDICTORS", "METRICS")
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Plugin:
    """What a plugin file adds. Nothing global changes: `evaluate` takes it as an argument."""

    features: dict[str, Feature] = field(default_factory=dict)
    """Each is fitted and graded as the built-in features are."""
    predictors: dict[str, Predictor] = field(default_factory=dict)
    metrics: dict[str, Callable[[BoolArray, FloatArray], float]] = field(default_factory=dict)
    """Functions of labels (n,) bool and log-odds (n,) float64; NaN where undefined."""
    paths: tuple[str, ...] = ()
    """Files that it comes from."""

    def known_predictors(self) -> dict[str, Predictor]:
        """Return the built-in predictors, one per feature of the plugin, and its predictors."""
        of_features = {
            name: Predictor(name, feature.doc, feature, fit_logistic)
            for name, feature in self.features.items()
        }
        return PREDICTORS | of_features | self.predictors

    def own_predictors(self) -> list[Predictor]:
        """Return what the plugin adds to the built-in predictors."""
        return [p for name, p in self.known_predictors().items() if name not in PREDICTORS]

    def choose_predictors(self, names: Sequence[str] | None) -> list[Predictor]:
        """Return the predictors of these names, all that are known for None.

        Raises
        ------
        InputError
            A name is unknown, or none is given.
        """
        known = self.known_predictors()
        if names is None:
            return list(known.values())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(f"unknown predictor {unknown[0]!r}; known: {', '.join(known)}")
        if not names:
            raise InputError(f"no predictor named; known: {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)]


def load_plugins(*paths: str | Path) -> Plugin:
    """Run plugin files and return what they add together.

    Parameters
    ----------
    *paths : str or Path
        Python files that define any of FEATURES (name to `Feature`), PREDICTORS (name to
        `Predictor`) and METRICS (name to function of labels and log-odds). They are run: trust
        them as any code.

    Returns
    -------
    Plugin

    Raises
    ------
    InputError
        A file that is absent, fails or defines none of the tables; an entry of the wrong kind,
        or whose name differs from its key, or is taken.
    """
    features: dict[str, Feature] = {}
    predictors: dict[str, Predictor] = {}
    metrics: dict[str, Any] = {}
    for path in paths:
        tables = _run(Path(path))
        _merge(features, tables.get("FEATURES", {}), Feature, path, set(FEATURES) | set(PREDICTORS))
        taken = set(PREDICTORS) | set(features)
        _merge(predictors, tables.get("PREDICTORS", {}), Predictor, path, taken)
        _merge(metrics, tables.get("METRICS", {}), None, path, set())
    return Plugin(features, predictors, metrics, tuple(map(str, paths)))


def as_plugin(plugin: Plugin | str | Path | Sequence[str | Path] | None) -> Plugin:
    """Return a plugin as it is, and that of one file or several; an empty one for None."""
    if plugin is None:
        return Plugin()
    if isinstance(plugin, Plugin):
        return plugin
    return load_plugins(*([plugin] if isinstance(plugin, str | Path) else plugin))


def _run(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such plugin file")
    spec = importlib.util.spec_from_file_location(f"draftlab_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:
        # what a user's file raises is his to see, but the file must be named
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error
    tables = {name: getattr(module, name) for name in TABLES if hasattr(module, name)}
    if not tables:
        raise InputError(f"{path}: defines none of {', '.join(TABLES)}")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: {name} must be a dict, got {type(table).__name__}")
    return tables


def _merge(
    into: dict[str, Entry],
    table: Mapping[str, Any],
    kind: type[Entry] | None,
    path: str | Path,
    taken: set[str],
) -> None:
    for name, entry in table.items():
        if name in taken or name in into:
            raise InputError(f"{path}: {name!r} is taken; choose another name")
        good = callable(entry) if kind is None else isinstance(entry, kind)
        if not good:
            wanted = "function" if kind is None else kind.__name__
            raise InputError(f"{path}: {name!r} must be a {wanted}, got {type(entry).__name__}")
        if kind is not None and getattr(entry, "name", name) != name:
            raise InputError(f"{path}: key {name!r} holds a {kind.__name__} of another name")
        into[name] = entry
