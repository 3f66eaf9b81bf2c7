"""Settings of a hook, from the environment, and what a request id says of the workload."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOG_VARIABLE = "DRAFTLAB_LOG"
"""The hook is inert unless this names the folder of a log."""

LOGGER = "vllm.draftlab"
"""A child of vLLM's logger, so that its handlers print what we say."""

_ENDPOINT = re.compile(r"^(?:chatcmpl|cmpl|resp|gen|score|embd)[-_]")
_RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_SAMPLE_NUMBER = re.compile(r"^\d+_(?=.*/)")


@dataclass(frozen=True)
class HookSettings:
    """What a hook logs, and where."""

    log: Path
    dataset: str = "live"
    """Workload of requests that neither the mapping nor their id assigns to one."""
    workloads: tuple[tuple[str, str], ...] = ()
    """(pattern of request ids, workload); the first that fits counts."""
    deployment: str | None = None
    raw_ids: bool = False
    tokens: bool = False
    target: bool = False
    """Log overlap and accept_prob: reads target and draft distributions once more."""
    shadow: bool = True
    """Let vLLM run its own acceptance estimator even where nothing is trimmed by it."""
    salt: str = field(default="", repr=False)
    """Secret of the run, never written: hashed ids of two runs cannot be compared."""

    def hash(self, text: str) -> str:
        """Return a salted hash of an id."""
        return hashlib.sha256((self.salt + text).encode()).hexdigest()[:16]

    def hash_tokens(self, tokens: Sequence[int]) -> str:
        """Return a salted hash of a prompt: equal prompts are one group, and nobody learns it."""
        data = self.salt.encode() + np.asarray(tokens, dtype=np.int64).tobytes()
        return hashlib.sha256(data).hexdigest()[:16]


def read_settings(environment: Mapping[str, str], *, salt: str) -> HookSettings:
    """Return the settings that the environment asks for; see docs/vllm.md.

    Raises
    ------
    InputError
        The mapping file is unusable, or a switch is neither 0 nor 1.
    """
    mapping = environment.get("DRAFTLAB_WORKLOADS")
    return HookSettings(
        log=Path(environment[LOG_VARIABLE]).expanduser(),
        dataset=environment.get("DRAFTLAB_DATASET", "live"),
        workloads=_read_workloads(Path(mapping).expanduser()) if mapping else (),
        deployment=environment.get("DRAFTLAB_DEPLOYMENT"),
        raw_ids=_switch(environment, "DRAFTLAB_RAW_IDS"),
        tokens=_switch(environment, "DRAFTLAB_TOKENS"),
        target=_switch(environment, "DRAFTLAB_TARGET"),
        shadow=_switch(environment, "DRAFTLAB_SHADOW", default="1"),
        salt=salt,
    )


def _switch(environment: Mapping[str, str], name: str, default: str = "0") -> bool:
    value = environment.get(name, default)
    if value not in ("0", "1"):
        raise InputError(f"{name} must be 0 or 1, got {value!r}")
    return value == "1"


def _read_workloads(path: Path) -> tuple[tuple[str, str], ...]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"DRAFTLAB_WORKLOADS={path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise InputError(f'DRAFTLAB_WORKLOADS={path}: wanted {{"id pattern": "workload", ...}}')
    return tuple(content.items())


def external_id(internal: str) -> str:
    """Return the caller's id: vLLM appends eight random hex digits to it.

    Examples
    --------
    >>> external_id("chatcmpl-gsm8k/17-b59fc16f")
    'chatcmpl-gsm8k/17'
    """
    return _RANDOM_SUFFIX.sub("", internal)


def split_id(external: str) -> tuple[str | None, str | None]:
    """Return workload and group that an id ``workload/...`` or ``workload/group/...`` names.

    The endpoint's prefix and the number of a parallel sample are left out.

    Examples
    --------
    >>> split_id("chatcmpl-gsm8k/17")
    ('gsm8k', None)
    >>> split_id("1_cmpl-chat/42/turn-2")
    ('chat', '42')
    >>> split_id("b59fc16f")
    (None, None)
    """
    name = _ENDPOINT.sub("", _SAMPLE_NUMBER.sub("", external))
    parts = name.split("/", 2)
    if len(parts) == 1 or not parts[0]:
        return None, None
    return parts[0], parts[1] if len(parts) == 3 else None


def find_workload(external: str, settings: HookSettings) -> str:
    """Return the workload of a request: by the mapping, else by its id, else the default."""
    for pattern, workload in settings.workloads:
        if fnmatch.fnmatchcase(external, pattern):
            return workload
    return split_id(external)[0] or settings.dataset
