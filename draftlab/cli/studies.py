"""Commands that study a log: inspect, evaluate, stability, calibrate, replay, simulate, audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.cli.options import (
    LOSS,
    Bins,
    Folds,
    InSample,
    Json,
    Logs,
    Out,
    OwnSlopes,
    Plugins,
    Pool,
    Predictors,
    Quiet,
    Selected,
    Strict,
    check_folder,
    exit_on_loss,
    new_console,
    print_json,
    say,
    show_progress,
)
from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftlab.log.reader import DraftLog
    from draftlab.plugins import Plugin
    from draftlab.policies.cost import CostTable
    from draftlab.reporting.run_studies import EvaluateOptions
    from draftlab.studies.replay.replay import ReplaySettings

app = typer.Typer()


@app.command()
def inspect(
    log: Logs,
    out: Out = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Say what is in a log and run its checks."""
    from draftlab.log.files import write_json
    from draftlab.log.reader import open_log
    from draftlab.log.summary import inspect_log, print_summary

    summary, findings = inspect_log(open_log(*log, strict=strict))
    if out is not None:
        write_json(out / "inspect" / "result.json", summary)
    if json_out:
        print_json(summary)
    elif not quiet:
        print_summary(summary, new_console())
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(LOSS)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder of the foreign files.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of the log; runs are added to it.", callback=check_folder
        ),
    ],
    form: Annotated[str, typer.Option("--from", help="Format of the files.")] = "specspecs",
    drafting: Annotated[str, typer.Option(help="greedy or probabilistic.")] = "probabilistic",
    temperature: Annotated[float, typer.Option(help="Of the requests.")] = 1.0,
    quiet: Quiet = False,
) -> None:
    """Write a foreign recording of drafts as a draft log."""
    from draftlab.log.convert import convert as run

    for folder in run(source, out, form, drafting=drafting, temperature=temperature):
        say(f"wrote {folder}", quiet=quiet)


@app.command()
def evaluate(
    log: Logs,
    out: Out = None,
    predictor: Predictors = None,
    in_sample: InSample = False,
    folds: Folds = 5,
    n_bins: Bins = 15,
    slope_per_position: OwnSlopes = False,
    allow_trimmed: Selected = False,
    pool: Pool = False,
    compare_all: Annotated[
        bool, typer.Option("--compare-all", help="Paired differences of every two predictors.")
    ] = False,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Refit every feature and grade every predictor."""
    from draftlab.log.reader import open_log
    from draftlab.studies.evaluate import evaluate as run

    opened = open_log(*log, strict=strict)
    result = run(
        opened,
        predictors=predictor,
        in_sample=in_sample,
        folds=folds,
        n_bins=n_bins,
        slope_per_position=slope_per_position,
        allow_trimmed=allow_trimmed,
        pool=pool,
        plugin=_plugin(plugin),
        compare="all" if compare_all else "adopted",
        out=out,
    )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.tables import print_evaluation

        print_evaluation(result, new_console())
    exit_on_loss(opened)


def _plugin(paths: list[str] | None) -> Plugin | None:
    from draftlab.plugins import load_plugins

    return load_plugins(*paths) if paths else None


@app.command()
def stability(
    log: Logs,
    out: Out = None,
    allow_trimmed: Selected = False,
    pool: Pool = False,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Say how coefficients depend on workload and pair, what transfers, learns and drifts."""
    from draftlab.log.reader import open_log
    from draftlab.studies.stability.stability import stability as run

    opened = open_log(*log, strict=strict)
    result = run(opened, allow_trimmed=allow_trimmed, pool=pool, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        names = (
            "workloads", "workload_correlations", "refit_spread", "slopes", "transfer", "learning",
            "feature_sets", "ceiling_share", "acceptance_lengths", "second_rank", "change",
        )  # fmt: skip
        _print_tables(result, names, result.notes)
    exit_on_loss(opened)


@app.command()
def calibrate(
    log: Logs,
    out: Out = None,
    source: Annotated[
        list[str] | None, typer.Option(help="qmax or confidence, repeatable. [default: both]")
    ] = None,
    n_bins: Annotated[int, typer.Option(help="Equal-width bins of ECE.")] = 15,
    allow_trimmed: Selected = False,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Fit calibrators on half the prompts, grade them on the others."""
    from draftlab.log.reader import open_log
    from draftlab.studies.calibrate import calibrate as run

    opened = open_log(*log, strict=strict)
    result = run(opened, sources=source, n_bins=n_bins, allow_trimmed=allow_trimmed, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        import polars as pl

        from draftlab.reporting.console.text import print_table

        pooled = result.metrics.filter(pl.col("position").is_null())
        columns = ("source", "view", "method", "per_position", "n", "auc", "log_loss", "ece")
        print_table(pooled.select(columns), new_console())
        _print_tables(result, ("temperatures",), result.notes)
    exit_on_loss(opened)


@app.command()
def simulate(
    log: Logs,
    out: Out = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            help="Cost table, repeatable: a file, HARDWARE/MODEL, or 'log'. [default: log]"
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="fixed, clairvoyant, draft-verify or POLICY/PREDICTOR, repeatable."),
    ] = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(help="Instead: adaptive verification by this predictor, repeatable."),
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests in a batch, repeatable. [default: 1..256]")
    ] = None,
    cap: Annotated[int | None, typer.Option(help="Largest budget of a step.")] = None,
    live: Annotated[
        str | None,
        typer.Option(help="Log of the same prompts that was trimmed live, to compare with."),
    ] = None,
    seed: int = 0,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Say what a verification budget policy would have gained on logged drafts."""
    from draftlab.log.reader import open_log
    from draftlab.studies.simulate.simulate import CONCURRENCIES
    from draftlab.studies.simulate.simulate import simulate as run
    from draftlab.studies.simulate.trimming_check import check_live

    opened = open_log(*log, strict=strict)
    costs = [_cost(name, opened) for name in cost or ["log"]]
    checked = None if live is None else check_live(opened, live, costs[0])
    result = run(
        opened,
        costs,
        policies=policy,
        predictors=predictor,
        concurrencies=concurrency or CONCURRENCIES,
        cap=cap,
        seed=seed,
        out=out,
    )
    if out is not None and checked is not None:
        checked.write(out)
    if json_out:
        print_json(result.to_dict() | ({"live": checked.to_dict()} if checked else {}))
    elif not quiet:
        from draftlab.reporting.console.studies import print_live_check, print_simulation

        print_simulation(result, new_console())
        if checked is not None:
            print_live_check(checked, new_console())
    exit_on_loss(opened)


def _cost(name: str, log: DraftLog) -> CostTable:
    """Return a cost table by name: of the log's own steps, a model, or a file."""
    from draftlab.policies.cost import find_cost
    from draftlab.studies.simulate.simulate import cost_of_log

    return cost_of_log(log) if name == "log" else find_cost(name)


@app.command()
def audit(
    log: Annotated[
        list[str] | None, typer.Argument(metavar="[LOG]...", help="Logs with distributions.")
    ] = None,
    out: Out = None,
    predictor: Annotated[list[str] | None, typer.Option(help="Predictor, repeatable.")] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Of the trimming rule, repeatable.")
    ] = None,
    json_out: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether predictors and policies keep the target's output distribution."""
    from draftlab.studies.audit.audit import THRESHOLDS
    from draftlab.studies.audit.audit import audit as run

    result = run(log or None, predictors=predictor, thresholds=threshold or THRESHOLDS, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.studies import print_audit

        print_audit(result, new_console())
    if not result.passed:
        raise typer.Exit(LOSS)


def _print_tables(result: Any, names: Sequence[str], notes: Sequence[str]) -> None:
    """Print the tables that hold anything, each under its name, then the notes."""
    from draftlab.reporting.console.studies import print_notes
    from draftlab.reporting.console.studies import say as print_line
    from draftlab.reporting.console.text import print_table

    console = new_console()
    for name in names:
        table = getattr(result, name)
        if len(table):
            print_line(console, f"\n{name.replace('_', ' ')}")
            print_table(table.drop("run", "pair", "drafting"), console)
    print_notes(notes, console)


@app.command()
def replay(
    log: Logs,
    out: Out = None,
    estimator: Annotated[
        list[str] | None, typer.Option(help="Estimator by name, repeatable. [default: five]")
    ] = None,
    feature: Annotated[str, typer.Option(help="Column that the estimators read.")] = "logit_qmax",
    refit_interval: Annotated[int, typer.Option(help="Engine steps between refits.")] = 100,
    damping: Annotated[float, typer.Option(help="A step is scaled by n / (n + damping).")] = 50.0,
    ridge: Annotated[float, typer.Option(help="Added to the matrix, not the gradient.")] = 0.001,
    start_slope: Annotated[float, typer.Option(help="Slope to begin with.")] = 0.5,
    start_intercept: Annotated[float, typer.Option(help="Intercepts to begin with.")] = -0.2,
    float32: Annotated[
        bool, typer.Option("--float32", help="Quantise the feature as vLLM stores it.")
    ] = False,
    excluded: Annotated[
        bool | None,
        typer.Option(
            "--excluded/--eligible-only",
            help="Learn from rows that are not eligible. [default: vLLM's rule does]",
        ),
    ] = None,
    window: Annotated[int, typer.Option(help="Engine steps in a window of the metrics.")] = 100,
    offline: Annotated[
        bool, typer.Option("--offline/--no-offline", help="Compare with the offline fit.")
    ] = True,
    snapshot: Annotated[
        bool, typer.Option("--snapshot/--no-snapshot", help="Begin from the run's start state.")
    ] = True,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Constants to sweep, 'refit-interval=25,50 damping=0,50', repeatable. Also of a "
            "rival: decay= (exp-decay), max-step= (step-limited)."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of a sweep.")] = 2,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Drift experiment, 'copying@300 > fiction=3+chat=1@300', or 'default': the "
            "hardest change between two workloads, and back."
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Times that the scenario is repeated.")] = 1,
    proposals_per_step: Annotated[int, typer.Option(help="Batch of a scenario.")] = 64,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Run vLLM's online estimator and its rivals over a log, as the engine would have."""
    from draftlab.log.reader import open_log
    from draftlab.online.rivals import DEFAULT_ESTIMATORS
    from draftlab.online.vllm import Constants
    from draftlab.studies.replay.replay import ReplaySettings

    if sweep:
        # `--sweep damping=0,50 ridge=0,1`: the option takes one word, the rest look like logs
        sweep += [text for text in log if _is_constant(text)]
        log = [text for text in log if not _is_constant(text)]
    opened = open_log(*log, strict=strict)
    settings = ReplaySettings(
        estimators=tuple(estimator or DEFAULT_ESTIMATORS),
        feature=feature,
        constants=Constants(refit_interval, damping, ridge, start_slope, start_intercept),
        float32=float32,
        excluded=excluded,
        offline=offline,
        snapshot=snapshot,
        window=window,
    )
    if sweep:
        chosen = estimator[0] if estimator else None
        _sweep(log, sweep, chosen, settings, processes, out=out, json_out=json_out, quiet=quiet)
    elif scenario is not None:
        experiment = (scenario, repeat, proposals_per_step)
        _drift(opened, experiment, settings, out=out, json_out=json_out, quiet=quiet)
    else:
        _replay(opened, settings, out=out, json_out=json_out, quiet=quiet)
    exit_on_loss(opened)


def _is_constant(text: str) -> bool:
    return "=" in text and "/" not in text and not Path(text).exists()


def _replay(
    log: DraftLog, settings: ReplaySettings, *, out: Path | None, json_out: bool, quiet: bool
) -> None:
    from draftlab.reporting.replays import print_replay
    from draftlab.studies.replay.replay import replay as run

    result = run(log, settings=settings, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        print_replay(result, new_console())


def _sweep(
    log: list[str],
    grid: list[str],
    estimator: str | None,
    settings: ReplaySettings,
    processes: int,
    *,
    out: Path | None,
    json_out: bool,
    quiet: bool,
) -> None:
    from draftlab.log.files import replace_file, to_records
    from draftlab.reporting.console.text import print_table
    from draftlab.studies.replay.sweep import parse_grid
    from draftlab.studies.replay.sweep import sweep as run

    constants = parse_grid(grid)
    with show_progress("sweeping", None, quiet=quiet or json_out) as advance:
        table = run(
            log,
            constants,
            estimator=estimator,
            settings=settings,
            processes=processes,
            on_done=lambda done, total: advance(done, f"{done} of {total} combinations"),
        )
    if out is not None:
        from draftlab.reporting.figures.sweep import write_sweep

        replace_file(out / "replay" / "sweep.parquet", table.write_parquet)
        write_sweep(table, out / "replay" / "sweep.svg")
    if json_out:
        print_json({"command": "replay", "sweep": to_records(table)})
    elif not quiet:
        from draftlab.reporting.figures.sweep import sweep_table

        say(f"{table['estimator'][0]}, by the constants swept", quiet=quiet)
        print_table(sweep_table(table), new_console())


def _drift(
    log: DraftLog,
    experiment: tuple[str, int, int],
    settings: ReplaySettings,
    *,
    out: Path | None,
    json_out: bool,
    quiet: bool,
) -> None:
    from dataclasses import replace

    from draftlab.log.files import to_records
    from draftlab.reporting.replays import print_drift
    from draftlab.studies.replay.drift import default_scenario, drift, parse_scenario

    text, repeat, proposals_per_step = experiment
    if text == "default":
        scenario = default_scenario(log, steps=5 * settings.constants.refit_interval) * repeat
    else:
        scenario = parse_scenario(text, repeat=repeat)
    result = drift(
        log,
        scenario,
        settings=replace(settings, window=min(settings.window, 10)),
        proposals_per_step=proposals_per_step,
        out=out,
    )
    if json_out:
        table = result.recovery.drop("run", "pair", "drafting")
        print_json(
            {"command": "replay", "settings": result.settings, "recovery": to_records(table)}
        )
    elif not quiet:
        print_drift(result, new_console())


def _refuse_beside_compare(options: EvaluateOptions, others: dict[str, str | None]) -> None:
    defaults = type(options)()._asdict()
    given = [name for name, value in others.items() if value is not None]
    given += [
        f"--{'predictor' if name == 'predictors' else name.replace('_', '-')}"
        for name, value in options._asdict().items()
        if value != defaults[name]
    ]
    if given:
        raise InputError(
            "--compare shows differences of two logs, on held-out rows and without simulation: "
            f"leave out {', '.join(given)}"
        )


@app.command()
def report(
    log: Logs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the report. [default: report]", callback=check_folder
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Log to set beside, repeatable for its runs: differences, not grades."),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(help="Log of the same prompts that was trimmed live: was simulation right?"),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="Cost table of policies and of --live: `log`, a model or a file of `profile`."
        ),
    ] = None,
    predictor: Predictors = None,
    in_sample: InSample = False,
    folds: Folds = 5,
    n_bins: Bins = 15,
    slope_per_position: OwnSlopes = False,
    allow_trimmed: Selected = False,
    plugin: Plugins = None,
    pdf: Annotated[bool, typer.Option("--pdf/--no-pdf", help="Also write report.pdf.")] = True,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print a summary for a pull request; files only with --out."
        ),
    ] = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Write a self-contained report of a log, or of two side by side: HTML, PDF, JSON."""
    from draftlab.log.reader import open_log
    from draftlab.reporting import render
    from draftlab.reporting.run_studies import EvaluateOptions
    from draftlab.studies.simulate.trimming_check import check_live

    opened = open_log(*log, strict=strict)
    logs = [opened]
    options = EvaluateOptions(
        predictor, in_sample, folds, n_bins, slope_per_position, allow_trimmed, _plugin(plugin)
    )
    if compare:
        _refuse_beside_compare(options, {"--live": live, "--cost": cost})
        logs.append(open_log(*compare, strict=strict))
        content, svgs = render.make_comparison(*logs)
    else:
        named = {"--live": live, "--cost": cost}
        content, svgs = render.make_report(
            opened,
            options,
            cost=None if cost is None else _cost(cost, opened),
            typed=[word for name, value in named.items() if value for word in (name, value)],
            live=None if live is None else check_live(opened, live, _cost(cost or "log", opened)),
        )
    if markdown:
        from draftlab.reporting.markdown import render_markdown

        typer.echo(render_markdown(content))
    if out is not None or not markdown:
        index = render.write_report(content, svgs, out or Path("report"), pdf=pdf)
        say(f"wrote {index}", quiet=quiet or markdown)
    exit_on_loss(*logs)
