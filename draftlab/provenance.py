"""Where a result comes from: versions, command, seed, input hash."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        Seed, input hash and whatever else a reader needs to run it again.
    """
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in (*_PACKAGES, *packages)},
        **facts,
    }
