"""draftlab: offline analysis and feature evaluation for speculative decoding.

The functions below load on first use, so that the import stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftlab.log.reader import open_log
    from draftlab.reporting.render import report
    from draftlab.studies.audit.audit import audit
    from draftlab.studies.calibrate import calibrate
    from draftlab.studies.compare import compare
    from draftlab.studies.evaluate import evaluate
    from draftlab.studies.replay.replay import replay
    from draftlab.studies.simulate.simulate import simulate
    from draftlab.studies.stability.stability import stability

__version__ = "0.1.0"

_PUBLIC = {
    "audit": "draftlab.studies.audit.audit",
    "calibrate": "draftlab.studies.calibrate",
    "compare": "draftlab.studies.compare",
    "evaluate": "draftlab.studies.evaluate",
    "open_log": "draftlab.log.reader",
    "replay": "draftlab.studies.replay.replay",
    "report": "draftlab.reporting.render",
    "simulate": "draftlab.studies.simulate.simulate",
    "stability": "draftlab.studies.stability.stability",
}

__all__ = [
    "__version__",
    "audit",
    "calibrate",
    "compare",
    "evaluate",
    "open_log",
    "replay",
    "report",
    "simulate",
    "stability",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'draftlab' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
