"""Where a result comes from: versions, command, seed, and keys."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_PACKAGES = ("draftlab", "numpy", "polars", "pyarrow", "scipy", "scikit-learn")


def version(package: str = "draftlab") -> str:
    """Return the installed version of a package, or ``unknown``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def utc_now() -> str:
    """Return the present time in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """Return the command that runs, as one would type it; a script is named without its folder."""
    program = Path(sys.argv[0]).name or "python"
    return shlex.join([program, *sys.argv[1:]])


def hash_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 over the names and contents of files, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def collect(*, packages: Iterable[str] = (), **facts: Any) -> dict[str, Any]:
    """Return the origin of a result: versions, command, Python, and the given facts.

    Parameters
    ----------
    packages : iterable of str
        Further packages whose versions matter (torch, transformers, ...).
    **facts
        Seed, fingerprint of the log, and whatever else a reader needs to run it again.
    """
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in (*_PACKAGES, *packages)},
        **facts,
    }


def key_of_call(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return a key that is equal for calls that must give the same result.

    Parameters
    ----------
    function : callable
        By its name; that it is the same code is what the hash of the package's source says.
    options : mapping
        Arguments by name. Logs count by their ``fingerprint``, results by their key, the files
        of ``plugin`` and ``cost`` by their content.
    """
    named = {name: _stable(value, name) for name, value in options.items()}
    content = [f"{function.__module__}.{function.__qualname__}", hash_source(), named]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@functools.cache
def hash_source() -> str:
    """Return a hash of the package's own code: other code may give other numbers."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _stable(value: Any, name: str = "") -> Any:
    """Return what an argument says, for JSON: equal for equal arguments in every process."""
    if name == "plugin":
        return _hash_plugins(value)
    if name == "cost" and isinstance(value, str | Path) and Path(value).is_file():
        return hash_files([Path(value)])
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _stable(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_stable(entry, name) for entry in value]
    return _stable_object(value)


def _stable_object(value: Any) -> Any:
    if hasattr(value, "fingerprint"):  # a log
        return value.fingerprint
    if hasattr(value, "provenance"):  # a result
        return value.provenance.get("key", id(value))
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _stable(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return [type(value).__qualname__, fields]
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else str(value)


def _hash_plugins(plugin: Any) -> list[str]:
    """Hash plugin files, whether they are named or loaded."""
    paths = getattr(plugin, "paths", plugin) or ()
    named = [paths] if isinstance(paths, str | Path) else paths
    return [hash_files([Path(path)]) for path in named]
