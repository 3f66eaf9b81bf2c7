"""Commands about online estimators: replay, sweep, drift."""

from __future__ import annotations

from typing import Annotated

import typer

from draftlab.cli.options import (
    By,
    Json,
    Logs,
    Out,
    Plugins,
    Quiet,
    Strict,
    Where,
    exit_on_loss,
    new_console,
    print_json,
    say,
    show_progress,
    typed_options,
    working,
)

app = typer.Typer()

Estimators = Annotated[
    list[str] | None,
    typer.Option("--estimator", "-e", help="Estimator by name. Repeatable. [default: five]"),
]
Feature = Annotated[
    str, typer.Option(help="Column, or feature of a plugin, that the estimators read.")
]
RefitInterval = Annotated[int, typer.Option(help="Engine steps between refits.")]
Damping = Annotated[float, typer.Option(help="Shrinks each refit step by n / (n + damping).")]
Ridge = Annotated[float, typer.Option(help="Ridge added to the Hessian only.")]
StartSlope = Annotated[float, typer.Option(help="Slope to begin with.")]
StartIntercept = Annotated[float, typer.Option(help="Intercepts to begin with.")]
Decay = Annotated[
    float | None, typer.Option(help="What exp-decay keeps of older sums at a refit. [default: 0.7]")
]
MaxStep = Annotated[
    float | None, typer.Option(help="Most that step-limited moves a coefficient, in nats.")
]
Float32 = Annotated[bool, typer.Option("--float32", help="Quantise the feature as vLLM stores it.")]
AllRows = Annotated[
    bool | None,
    typer.Option(
        "--all-rows/--eligible-only",
        help="Also learn from rows that grading leaves out, such as warm-up. [default: as vLLM]",
    ),
]
Window = Annotated[int, typer.Option(help="Engine steps per window of the metrics.")]
Snapshot = Annotated[
    bool, typer.Option("--snapshot/--no-snapshot", help="Begin from the run's start state.")
]


@app.command(epilog="Example: draftlab replay data/sample --refit-interval 25")
def replay(
    log: Logs,
    out: Out = None,
    where: Where = None,
    by: By = None,
    estimator: Estimators = None,
    feature: Feature = "logit_qmax",
    refit_interval: RefitInterval = 100,
    damping: Damping = 50.0,
    ridge: Ridge = 0.001,
    start_slope: StartSlope = 0.5,
    start_intercept: StartIntercept = -0.2,
    decay: Decay = None,
    max_step: MaxStep = None,
    float32: Float32 = False,
    all_rows: AllRows = None,
    window: Window = 100,
    offline: Annotated[
        bool, typer.Option("--offline/--no-offline", help="Compare with the offline fit.")
    ] = True,
    snapshot: Snapshot = True,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Run online estimators over a log."""
    from draftlab import open_log
    from draftlab import replay as run

    opened = open_log(*log, strict=strict)
    with working("replaying", quiet=quiet):
        result = run(
            opened,
            estimators=estimator,
            feature=feature,
            refit_interval=refit_interval,
            damping=damping,
            ridge=ridge,
            start_slope=start_slope,
            start_intercept=start_intercept,
            decay=decay,
            max_step=max_step,
            float32=float32,
            all_rows=all_rows,
            window=window,
            offline=offline,
            snapshot=snapshot,
            plugin=plugin,
            by=by,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.replay import print_replay

        print_replay(result, new_console())
    exit_on_loss(opened)


_NOT_CONSTANTS = ("log", "grid", "out", "json_out", "quiet", "strict")


@app.command(epilog="Example: draftlab sweep data/sample --grid refit-interval=25,100 damping=0,50")
def sweep(
    ctx: typer.Context,
    log: Logs,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            "-g",
            help="Constants to sweep, as in 'refit-interval=25,50 damping=0,50'. Repeatable.",
        ),
    ],
    out: Out = None,
    where: Where = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            "--estimator", "-e", help="Estimator by name. [default: the one with the constants]"
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes that replay side by side.")] = 2,
    feature: Feature = "logit_qmax",
    refit_interval: RefitInterval = 100,
    damping: Damping = 50.0,
    ridge: Ridge = 0.001,
    start_slope: StartSlope = 0.5,
    start_intercept: StartIntercept = -0.2,
    float32: Float32 = False,
    all_rows: AllRows = None,
    window: Window = 100,
    snapshot: Snapshot = True,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Replay an estimator over many constants."""
    from draftlab import open_log
    from draftlab import sweep as run

    # `--grid damping=0,50 ridge=0,1`: the option takes one word, the rest look like logs
    more = [text for text in log if "=" in text and "/" not in text]
    opened = open_log(*(text for text in log if text not in more), strict=strict)
    with show_progress("sweeping", None, quiet=quiet or json_out) as advance:
        result = run(
            opened,
            [*grid, *more],
            on_done=lambda done, total: advance(done, f"{done} of {total} combinations"),
            **typed_options(ctx, *_NOT_CONSTANTS),
            out=out,
        )
    if out is not None:
        from draftlab.reporting.figures.sweep import write_sweep

        write_sweep(result.combinations, out / "sweep" / "sweep.svg")
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.text import print_table
        from draftlab.reporting.figures.sweep import sweep_table

        say(f"{result.combinations['estimator'][0]}, by the constants swept", quiet=quiet)
        print_table(sweep_table(result.combinations), new_console())
    exit_on_loss(opened)


@app.command(epilog="Example: draftlab drift data/sample --scenario 'chat@300 > copying@300'")
def drift(
    log: Logs,
    out: Out = None,
    where: Where = None,
    scenario: Annotated[
        str,
        typer.Option(
            help="Traffic and engine steps of each segment, as in 'copying@300 > "
            "fiction=3+chat=1@300'; 'default' is the hardest change between two workloads and "
            "back.",
        ),
    ] = "default",
    repeat: Annotated[int, typer.Option(help="How often the scenario is run through.")] = 1,
    proposals_per_step: Annotated[int, typer.Option(help="Requests in a step.")] = 64,
    estimator: Estimators = None,
    feature: Feature = "logit_qmax",
    refit_interval: RefitInterval = 100,
    damping: Damping = 50.0,
    ridge: Ridge = 0.001,
    start_slope: StartSlope = 0.5,
    start_intercept: StartIntercept = -0.2,
    decay: Decay = None,
    max_step: MaxStep = None,
    float32: Float32 = False,
    all_rows: AllRows = None,
    window: Window = 10,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Show how estimators follow new traffic."""
    from draftlab import drift as run
    from draftlab import open_log

    opened = open_log(*log, strict=strict)
    with working("replaying a change of traffic", quiet=quiet):
        result = run(
            opened,
            scenario,
            repeat=repeat,
            proposals_per_step=proposals_per_step,
            estimators=estimator,
            feature=feature,
            refit_interval=refit_interval,
            damping=damping,
            ridge=ridge,
            start_slope=start_slope,
            start_intercept=start_intercept,
            decay=decay,
            max_step=max_step,
            float32=float32,
            all_rows=all_rows,
            window=window,
            plugin=plugin,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.replay import print_drift

        print_drift(result, new_console())
    exit_on_loss(opened)
