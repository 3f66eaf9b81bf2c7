"""What runs an engine: collect, train-head, profile, demo. The engines load on use."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from draftlab.engine.collect import CollectSettings, Progress
    from draftlab.engine.confidence import ConfidenceHead
    from draftlab.policies.cost import CostTable
    from draftlab.results import Result
    from draftlab.studies.simulate.costs import Cost

ENGINES = ("reference", "vllm")


def collect(
    out: str | Path = "log",
    *,
    engine: str = "reference",
    adaptive_verification: str | None = None,
    cost: Cost | None = None,
    fit_on: str | Path | None = None,
    on_step: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Path:
    """Run speculative decoding live and log every draft.

    Parameters
    ----------
    out : path
        Log to add the run to.
    engine : {"reference", "vllm"}
    adaptive_verification : str, optional
        Trim live by this predictor (reference engine): a predictor's name, ``hybrid``, or
        ``online-`` and an estimator's name. Needs ``cost``.
    cost : CostTable, str or path, optional
        Cost table for it: a file of `profile`, or a model such as ``H100/llama-8b``.
    fit_on : path, optional
        Log of this pair that the predictor is fitted on.
    on_step : callable, optional
        Called after each engine step with what was done so far.
    **options
        Fields of `draftlab.engine.collect.CollectSettings`, or of
        `draftlab.hooks.offline.VllmSettings` for vLLM: target, drafter, prompts, temperature, ...

    Returns
    -------
    Path
        Folder of the run.

    Raises
    ------
    InputError
        An option that the engine does not take, or a value that it refuses.
    MissingExtraError
        The engine's packages are not installed.

    Examples
    --------
    >>> collect(engine="vllm", skip_layers="4,7")
    Traceback (most recent call last):
    draftlab.errors.InputError: --engine vllm does not take --skip-layers
    """
    trimming = {"adaptive_verification": adaptive_verification, "cost": cost, "fit_on": fit_on}
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if engine == "vllm":
        return _collect_vllm(out, options | {n: v for n, v in trimming.items() if v}, on_step)
    if adaptive_verification is None and (given := [n for n, v in trimming.items() if v]):
        raise InputError(f"{_typed(given)} says nothing without --adaptive-verification")
    from draftlab.engine.collect import collect as run

    _refuse_beside(adaptive_verification, fit_on)
    settings = _check_settings(options)
    admission = None
    if adaptive_verification is not None:
        admission = _make_admission(
            adaptive_verification, cost, fit_on, settings.num_speculative_tokens
        )
    return run(out, settings, admission=admission, on_step=on_step or _ignore)


def _refuse_beside(predictor: str | None, fit_on: str | Path | None) -> None:
    """Refuse a log to fit on where nothing is fitted."""
    from draftlab.policies.adaptive import ONLINE, UNFITTED

    if predictor is None or fit_on is None:
        return
    if predictor in UNFITTED or predictor.startswith(ONLINE):
        raise InputError(
            f"--fit-on says nothing to {predictor}, which is not fitted on a log: leave it out"
        )


def _collect_vllm(out: str | Path, options: dict[str, Any], on_step: Any) -> Path:
    from draftlab.hooks.offline import VllmSettings, collect_vllm

    prompts = options.pop("prompts", None)
    _refuse_unknown("vllm", options, VllmSettings)
    if options.get("target", "embedded") == "embedded":
        raise InputError("vLLM needs a --target: the embedded default is a GGUF without drafter")
    from draftlab.engine.prompts import load_prompts, load_suites

    asked = load_prompts(prompts) if prompts else load_suites()
    return collect_vllm(out, VllmSettings(**options), asked, on_step=on_step or _ignore)


def _make_admission(
    name: str, cost: Cost | None, fit_on: str | Path | None, num_speculative_tokens: int
) -> Any:
    from draftlab.policies.adaptive import coefficients_of, make_admission
    from draftlab.policies.cost import DEFAULT_MODEL, CostTable, find_cost

    if cost is None:
        raise InputError(
            "--adaptive-verification needs --cost: a file of `draftlab profile`, or a model such "
            f"as {DEFAULT_MODEL}"
        )
    known = None
    if fit_on is not None:
        from draftlab.studies.evaluate import evaluate

        fitted = ("logit_qmax", "logit_q_sampled") if name == "hybrid" else (name,)
        known = coefficients_of(evaluate(fit_on, predictors=fitted).coefficients)
    table = cost if isinstance(cost, CostTable) else find_cost(str(cost))
    return make_admission(name, table, num_speculative_tokens, coefficients=known)


def train_head(
    out: str | Path,
    *,
    label: str = "overlap",
    units: int = 64,
    mismatch_weight: float = 1.0,
    on_step: Callable[[Progress], None] | None = None,
    **options: Any,
) -> ConfidenceHead:
    """Train a confidence head on the drafter's hidden state, and write it.

    Parameters
    ----------
    out : path
        File to write, .safetensors.
    label : {"overlap", "accepted"}
        Exact acceptance, or decisions.
    units : int
        Of the hidden layer; 0 is a linear probe.
    mismatch_weight : float
        Weight of rejections; SpecDec++ uses 6.
    on_step : callable, optional
        Called after each engine step with what was done so far.
    **options
        Fields of `draftlab.engine.collect.CollectSettings`; 90,000 labelled drafts and seed 1
        unless told.

    Raises
    ------
    InputError
        An option that the engine does not take, or a value that it refuses.
    MissingExtraError
        The engine's packages are not installed.
    """
    settings = _check_settings({"max_labelled": 90_000, "seed": 1} | options)
    from draftlab.engine.training import train_head as run

    return run(
        Path(out),
        settings,
        label=label,
        units=units,
        mismatch_weight=mismatch_weight,
        on_step=on_step or _ignore,
    )


def profile(
    out: str | Path | None = None,
    *,
    concurrencies: Sequence[int] | None = None,
    repetitions: int = 5,
    on_step: Callable[[int, int], None] | None = None,
    **options: Any,
) -> CostTable:
    """Measure what a step of the reference engine costs here, by its size.

    Parameters
    ----------
    out : path, optional
        File to write, JSON.
    concurrencies : sequence of int, optional
        Requests in a step; several sizes unless told.
    repetitions : int
        Steps measured per size.
    on_step : callable, optional
        Called with (steps done, all).
    **options
        Fields of `draftlab.engine.collect.CollectSettings`.

    Raises
    ------
    InputError
        An option that the engine does not take, or a value that it refuses.
    MissingExtraError
        The engine's packages are not installed.
    """
    settings = _check_settings(options)
    from draftlab.engine.profile import MEASURED_CONCURRENCIES
    from draftlab.engine.profile import profile as run
    from draftlab.policies.cost import StepSizes, table_from_steps

    sizes = run(
        settings,
        concurrencies=concurrencies or MEASURED_CONCURRENCIES,
        repetitions=repetitions,
        on_step=on_step or _ignore,
    )
    table = table_from_steps(
        StepSizes(**sizes),
        num_speculative_tokens=settings.num_speculative_tokens,
        name=f"{settings.target} on {settings.device}",
    )
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        table.write(Path(out))
    return table


def demo(
    out: str | Path = "reports/demo",
    *,
    max_labelled: int = 10_000,
    seed: int = 0,
    on_step: Callable[[Progress], None] | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> Path:
    """Do the whole job on the embedded default, from collecting to the report.

    Parameters
    ----------
    out : path
        Folder of the demo; nothing outside it is read or written.
    max_labelled : int
        Labelled drafts to collect.
    seed : int
    on_step : callable, optional
        As in `collect`.
    on_result : callable, optional
        Called with each result as soon as it is there.

    Returns
    -------
    Path
        index.html of the report.
    """
    from draftlab.log.reader import open_log
    from draftlab.policies.cost import DEFAULT_MODEL
    from draftlab.reporting.render import report
    from draftlab.studies.audit.audit import audit
    from draftlab.studies.evaluate import evaluate
    from draftlab.studies.replay.replay import replay
    from draftlab.studies.simulate.simulate import simulate

    folder = Path(out)
    run = collect(folder / "log", max_labelled=max_labelled, seed=seed, on_step=on_step)
    log, results = open_log(run), []
    predictors = ["logit_qmax", "qmax", "constant", "oracle"]
    for make in (
        lambda: evaluate(log, out=folder),
        # a short log holds fewer steps than vLLM's interval of 100
        lambda: replay(log, refit_interval=10, window=10, out=folder),
        # this drafter is slower than plain decoding on a CPU: the economics are those of a model
        lambda: simulate(
            log,
            DEFAULT_MODEL,
            predictors=predictors,
            concurrencies=[64, 256],
            by_dataset=False,
            out=folder,
        ),
        lambda: audit(out=folder),
    ):
        result: Result = make()
        results.append(result)
        (on_result or _ignore)(result)
    return report(log, folder, results=results, fresh=True)


def require_engine() -> None:
    """Name everything that the reference engine lacks at once."""
    needed = ("torch", "transformers", "gguf", "safetensors")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise MissingExtraError(
            f"the reference engine needs {', '.join(missing)}; install `draftlab[engine]`"
        )


def parse_layers(layers: str | Sequence[int] | int | None) -> tuple[int, ...] | int | None:
    """Return a skip set: layers (``"4,7,16"``), or how many to search (``"search:6"``, 6).

    Raises
    ------
    InputError
        The text is neither.
    """
    if layers is None or isinstance(layers, int):
        return layers
    if not isinstance(layers, str):
        return tuple(layers)
    kind, _, count = layers.partition(":")
    try:
        return int(count) if kind == "search" else tuple(int(part) for part in layers.split(","))
    except ValueError:
        raise InputError(
            f"--skip-layers {layers!r}: wanted layers such as 4,7,16 or search:6"
        ) from None


def _check_settings(options: dict[str, Any]) -> CollectSettings:
    """Return the reference engine's settings, once it is known that it can run with them."""
    from draftlab.engine.collect import CollectSettings

    _refuse_unknown("reference", options, CollectSettings)
    require_engine()
    return CollectSettings(**_parsed(options))


def _parsed(options: dict[str, Any]) -> dict[str, Any]:
    found = dict(options)
    if "skip_layers" in found:
        found["skip_layers"] = parse_layers(found["skip_layers"])
    if "prompts" in found:
        prompts = found["prompts"] or ()
        found["prompts"] = (prompts,) if isinstance(prompts, str | Path) else tuple(prompts)
    return found


def _refuse_unknown(engine: str, options: dict[str, Any], settings: type[Any]) -> None:
    """Refuse what the engine does not take, by name: silence would look like consent."""
    known = {field.name for field in dataclasses.fields(settings)}
    if strangers := [name for name in options if name not in known]:
        raise InputError(f"--engine {engine} does not take {_typed(strangers)}")


def _typed(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _ignore(*_: Any) -> None:
    """Report nothing."""
