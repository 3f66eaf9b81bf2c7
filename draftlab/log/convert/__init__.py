"""Foreign formats of draft records into a draft log, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.errors import InputError
from draftlab.log.convert import specspecs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONVERTERS: dict[str, Callable[..., list[Path]]] = {"specspecs": specspecs.read}
"""By name: (source folder, log folder, drafting, temperature) -> folders of the runs written."""


def convert(
    source: str | Path,
    out: str | Path,
    *,
    source_format: str = "specspecs",
    drafting: str = "probabilistic",
    temperature: float = 1.0,
) -> list[Path]:
    """Write foreign records as a draft log.

    Parameters
    ----------
    source : path
        Folder of the foreign files.
    out : path
        Folder of the log; runs are added to it.
    source_format : str
        Name in `CONVERTERS`.
    drafting : {"greedy", "probabilistic"}
        How the drafter drew its tokens. Foreign files do not say.
    temperature : float
        Temperature the requests were sampled with. Foreign files do not say either.

    Returns
    -------
    list of Path
        Folders of the runs.

    Raises
    ------
    InputError
        An unknown format or drafting, or files that are not of this format.
    """
    if source_format not in CONVERTERS:
        raise InputError(f"unknown format {source_format!r}; known: {', '.join(CONVERTERS)}")
    if drafting not in ("greedy", "probabilistic"):
        raise InputError(f"drafting must be greedy or probabilistic, got {drafting!r}")
    return CONVERTERS[source_format](source, out, drafting=drafting, temperature=temperature)
