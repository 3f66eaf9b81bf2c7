"""Say what the hook would record with the installed vLLM and a speculative configuration."""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import InputError, MissingExtraError
from draftlab.hooks.plan import RECORDED, Facts, plan_columns
from draftlab.hooks.settings import LOG_VARIABLE
from draftlab.hooks.vllm import MODEL_RUNNER, RUNNER_NAMES, SPEC_DECODE

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGIN_GROUP = "vllm.general_plugins"
PLUGIN = "draftlab"

V1_METHODS = ("suffix", "medusa", "mlp_speculator", "custom_class")
"""Methods that only Model Runner V1 serves."""

V1_ON_CPU = (
    "Model Runner V1 samples wrongly on a CPU at temperatures above 0 with speculative decoding: "
    "its rejection sampler expands the temperatures through a temporary tensor that is never "
    "copied back, so logits are divided by uninitialised memory (expand_batch_to_tokens in "
    "vllm/utils/cpu_triton_utils.py). Labels would be garbage; use Model Runner V2 "
    "(VLLM_USE_V2_MODEL_RUNNER=1)"
)

_CLASSES = {
    "dspark": "DSparkSpeculator",
    "mtp": "MTPSpeculator",
    "eagle": "EagleSpeculator",
    "eagle3": "EagleSpeculator",
    "draft_model": "StandaloneARSpeculator",
    "ngram": "NgramGPUSpeculator",
    "ngram_gpu": "NgramGPUSpeculator",
    "extract_hidden_states": "ExtractHiddenStatesSpeculator",
}
_DFLASH = {
    "DFlash2DraftModel": "DFlash2Speculator",
    "LiLiCorrDraftModel": "LiLiCorrSpeculator",
}


@dataclass(frozen=True)
class Installation:
    """What is installed here."""

    version: str
    on_cpu: bool
    has_triton: bool
    missing: tuple[str, ...] = ()
    """Names that the hook needs and this version lacks."""
    plugin: bool = True
    """vLLM finds the hook among its plugins."""


@dataclass(frozen=True)
class Diagnosis:
    """What the hook would do."""

    vllm: str
    speculator: str
    """vLLM's class, as far as the configuration tells."""
    drafting: str
    columns: dict[str, str]
    """Optional columns: ``recorded``, or why not."""
    problems: list[str] = field(default_factory=list)
    """What keeps anything from being logged."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the log should know."""

    @property
    def works(self) -> bool:
        """Whether drafts would be logged."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return asdict(self) | {"works": self.works}

    def table(self) -> list[tuple[str, str, str]]:
        """Return rows (column, yes or no, remark)."""
        rows = []
        for name, said in self.columns.items():
            if self._has(name):
                rows.append((name, "yes", said.removeprefix(RECORDED).lstrip(", ")))
            else:
                rows.append((name, "no", "nothing is logged" if self.problems else said))
        return rows

    def _has(self, name: str) -> bool:
        return self.works and self.columns[name].startswith(RECORDED)


def vllm_doctor(
    speculative_config: Mapping[str, Any] | str | None,
    *,
    environment: Mapping[str, str] | None = None,
    installation: Installation | None = None,
) -> Diagnosis:
    """Say which columns would be recorded, and what in the configuration prevents the rest.

    Parameters
    ----------
    speculative_config : mapping, or its JSON
        As given to ``vllm serve --speculative-config``.
    environment : mapping, optional
        Environment of the server; this process's own by default.
    installation : Installation, optional
        What is installed; looked up by default, which imports vLLM.

    Raises
    ------
    MissingExtraError
        vLLM is not installed.
    InputError
        The configuration is not a JSON object.
    """
    config = _parse(speculative_config)
    environment = os.environ if environment is None else environment
    installation = installation or find_installation()
    facts, guesses = _read_facts(config, environment)
    return Diagnosis(
        vllm=installation.version,
        speculator=facts.speculator,
        drafting=facts.drafting,
        columns=plan_columns(facts),
        problems=_problems(config, facts, environment, installation),
        notes=guesses + _notes(config, facts, environment),
    )


def find_installation() -> Installation:
    """Look up the installed vLLM; imports it."""
    try:
        vllm: Any = importlib.import_module("vllm")
        platforms: Any = importlib.import_module("vllm.platforms")
        triton: Any = importlib.import_module("vllm.triton_utils")
    except ImportError as error:
        raise MissingExtraError(
            f"vLLM cannot be imported ({error}); install `draftlab[vllm]`"
        ) from error
    found = metadata.entry_points(group=PLUGIN_GROUP)
    return Installation(
        version=str(vllm.__version__),
        on_cpu=bool(platforms.current_platform.is_cpu()),
        has_triton=bool(triton.HAS_TRITON),
        missing=tuple(_missing_names()),
        plugin=any(entry.name == PLUGIN for entry in found),
    )


def _missing_names() -> list[str]:
    try:
        spec: Any = importlib.import_module(SPEC_DECODE)
        runner: Any = importlib.import_module(MODEL_RUNNER)
    except Exception as error:  # a half-working installation raises anything here
        return [f"{MODEL_RUNNER} ({type(error).__name__}: {error})"]
    missing = [] if hasattr(spec, "init_speculator") else [f"{SPEC_DECODE}.init_speculator"]
    owner = getattr(runner, "GPUModelRunner", None)
    return missing + [f"GPUModelRunner.{n}" for n in RUNNER_NAMES if not hasattr(owner, n)]


def _parse(config: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if not isinstance(config, str):
        return dict(config or {})
    try:
        content = json.loads(config)
    except ValueError as error:
        raise InputError(f"speculative config is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"speculative config must be a JSON object, got {content!r}")
    return content


def _read_facts(config: dict[str, Any], environment: Mapping[str, str]) -> tuple[Facts, list[str]]:
    speculator, guesses = _guess_speculator(config)
    adaptive = bool(config.get("enable_adaptive_verification"))
    facts = Facts(
        speculator=speculator,
        drafting=config.get("draft_sample_method", "greedy"),
        adaptive=adaptive,
        # The checkpoint decides; of DSpark's, those with a head are the rule.
        confidence_head=adaptive and speculator == "DSparkSpeculator",
        local_argmax=bool(config.get("use_local_argmax_reduction")),
        shadow=environment.get("DRAFTLAB_SHADOW", "1") == "1",
        tokens=environment.get("DRAFTLAB_TOKENS") == "1",
        target=environment.get("DRAFTLAB_TARGET") == "1",
    )
    return facts, guesses


def _guess_speculator(config: dict[str, Any]) -> tuple[str, list[str]]:
    """Return vLLM's class, and a note where the configuration alone does not say."""
    method, model = config.get("method"), str(config.get("model") or "")
    notes = []
    if method is None and config:
        lower = model.lower()
        names = ("eagle3", "eagle", "dspark", "dflash", "mtp", "ngram")
        method = next((name for name in names if name in lower), "draft_model")
        notes.append(f"method is not given: taken as {method!r}, by the name of the model")
    if method == "dflash":
        architectures = _architectures(model)
        if architectures is None:
            notes.append(f"{model}: no config.json here, taken as plain DFlash")
        known = [_DFLASH[name] for name in architectures or () if name in _DFLASH]
        return (known[0] if known else "DFlashSpeculator"), notes
    if method is not None and str(method).endswith("_mtp"):
        method = "mtp"
    return _CLASSES.get(str(method), "DraftModelSpeculator"), notes


def _architectures(model: str) -> list[str] | None:
    path = Path(model) / "config.json"
    if not path.is_file():
        return None
    return list(json.loads(path.read_text(encoding="utf-8")).get("architectures") or ())


def _uses_v2(
    config: dict[str, Any], environment: Mapping[str, str], installation: Installation
) -> bool:
    asked = environment.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked is not None:
        return asked.lower() in ("1", "true")
    return installation.has_triton and config.get("method") not in V1_METHODS


def _problems(
    config: dict[str, Any],
    facts: Facts,
    environment: Mapping[str, str],
    installation: Installation,
) -> list[str]:
    problems = []
    if not config:
        problems.append("no speculative config: nothing is drafted")
    if not _uses_v2(config, environment, installation):
        problems.append(
            V1_ON_CPU
            if installation.on_cpu
            else "Model Runner V1 would run, and the hook knows V2 only "
            "(VLLM_USE_V2_MODEL_RUNNER=1 asks for it)"
        )
    if installation.missing:
        problems.append(f"this vLLM lacks {', '.join(installation.missing)}")
    if not installation.plugin:
        problems.append("vLLM does not find the plugin: install draftlab beside it")
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        problems.append(f"VLLM_PLUGINS={allowed} leaves the plugin {PLUGIN!r} out")
    if config and not facts.known.verdicts:
        problems.append(facts.known.remark)
    return problems


def _notes(config: dict[str, Any], facts: Facts, environment: Mapping[str, str]) -> list[str]:
    notes = []
    if not environment.get(LOG_VARIABLE):
        notes.append(f"{LOG_VARIABLE} is not set: the hook stays inert")
    if facts.drafting == "greedy" and facts.known.verdicts:
        notes.append(
            "greedy drafting is vLLM's default and keeps no draft logits; "
            '"draft_sample_method": "probabilistic" records every feature'
        )
    method = config.get("rejection_sample_method", "standard")
    if method != "standard":
        notes.append(
            f"rejection_sample_method {method!r}: its labels are no independent tests, every row "
            "is marked foreign_method"
        )
    if facts.adaptive:
        notes.append(
            "adaptive verification hides rows by the live prediction: the log carries a "
            "'trimmed' mark"
        )
    if facts.confidence_head:
        notes.append("with a confidence head in the checkpoint; without one the estimator runs")
    return notes
