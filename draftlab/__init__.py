"""draftlab: offline analysis and feature evaluation for speculative decoding.

The functions below load on first use, so that the import stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftlab import metrics
    from draftlab.engines import collect, demo, profile, train_head
    from draftlab.errors import InputError
    from draftlab.hooks.doctor import vllm_doctor
    from draftlab.log.convert import convert
    from draftlab.log.reader import open_log
    from draftlab.plugins import load_plugins
    from draftlab.policies.cost import find_cost
    from draftlab.regression import AcceptanceRegression
    from draftlab.reporting.render import report
    from draftlab.studies import read_result
    from draftlab.studies.audit.audit import audit
    from draftlab.studies.calibrate import calibrate
    from draftlab.studies.compare import compare
    from draftlab.studies.evaluate import evaluate
    from draftlab.studies.inspect import inspect
    from draftlab.studies.replay.drift import drift
    from draftlab.studies.replay.replay import replay
    from draftlab.studies.replay.sweep import sweep
    from draftlab.studies.simulate.simulate import simulate
    from draftlab.studies.simulate.trimming_check import trimming_check
    from draftlab.studies.stability.stability import stability

__version__ = "0.1.0"

_PUBLIC = {
    "AcceptanceRegression": "draftlab.regression",
    "InputError": "draftlab.errors",
    "audit": "draftlab.studies.audit.audit",
    "calibrate": "draftlab.studies.calibrate",
    "collect": "draftlab.engines",
    "compare": "draftlab.studies.compare",
    "convert": "draftlab.log.convert",
    "demo": "draftlab.engines",
    "drift": "draftlab.studies.replay.drift",
    "evaluate": "draftlab.studies.evaluate",
    "find_cost": "draftlab.policies.cost",
    "inspect": "draftlab.studies.inspect",
    "load_plugins": "draftlab.plugins",
    "open_log": "draftlab.log.reader",
    "profile": "draftlab.engines",
    "read_result": "draftlab.studies",
    "replay": "draftlab.studies.replay.replay",
    "report": "draftlab.reporting.render",
    "simulate": "draftlab.studies.simulate.simulate",
    "stability": "draftlab.studies.stability.stability",
    "sweep": "draftlab.studies.replay.sweep",
    "train_head": "draftlab.engines",
    "trimming_check": "draftlab.studies.simulate.trimming_check",
    "vllm_doctor": "draftlab.hooks.doctor",
}
"""Functions and classes by the module that holds them."""

__all__ = [
    "AcceptanceRegression",
    "InputError",
    "__version__",
    "audit",
    "calibrate",
    "collect",
    "compare",
    "convert",
    "demo",
    "drift",
    "evaluate",
    "find_cost",
    "inspect",
    "load_plugins",
    "metrics",
    "open_log",
    "profile",
    "read_result",
    "replay",
    "report",
    "simulate",
    "stability",
    "sweep",
    "train_head",
    "trimming_check",
    "vllm_doctor",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("draftlab.metrics")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'draftlab' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
