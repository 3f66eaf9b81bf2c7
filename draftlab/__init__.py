"""draftlab: offline analysis and feature evaluation for speculative decoding.

The functions below load on first use, so that the import stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftlab.auditing import audit
    from draftlab.calibrating import calibrate
    from draftlab.comparing import compare
    from draftlab.evaluation import evaluate
    from draftlab.log.reader import open_log
    from draftlab.replaying import replay
    from draftlab.reporting.render import report
    from draftlab.simulation import simulate
    from draftlab.structuring import structure

__version__ = "0.1.0"
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
    "structure",
]

_PUBLIC = {
    "audit": "draftlab.auditing",
    "calibrate": "draftlab.calibrating",
    "compare": "draftlab.comparing",
    "evaluate": "draftlab.evaluation",
    "open_log": "draftlab.log.reader",
    "replay": "draftlab.replaying",
    "report": "draftlab.reporting.render",
    "simulate": "draftlab.simulation",
    "structure": "draftlab.structuring",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'draftlab' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
