"""Commands about verification policies: simulate, trimming-check, audit."""

from __future__ import annotations

from typing import Annotated

import typer

from draftlab.cli.options import (
    LOSS,
    Json,
    Logs,
    Out,
    Plugins,
    Quiet,
    Seed,
    Strict,
    Where,
    exit_on_loss,
    new_console,
    print_json,
    working,
)

app = typer.Typer()


@app.command(epilog="Example: draftlab simulate data/sample --cost H100/llama-8b --concurrency 64")
def simulate(
    log: Logs,
    out: Out = None,
    where: Where = None,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            "--cost",
            "-c",
            help="Cost table: a file of `draftlab profile`, HARDWARE/MODEL, or 'log' for the "
            "log's own steps. Repeatable. [default: a model, and the log's steps if they tell]",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="fixed, clairvoyant, draft-verify, eagle2 or POLICY/PREDICTOR. Repeatable."
        ),
    ] = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(
            "--predictor",
            "-p",
            help="Shorthand for --policy av/PREDICTOR. Repeatable; not with --policy.",
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="Requests in a batch. Repeatable. [default: 1, 2, 4, ..., 256]"),
    ] = None,
    cap: Annotated[int | None, typer.Option(help="Largest budget of a step.")] = None,
    by_dataset: Annotated[
        bool, typer.Option("--by-dataset/--mixed", help="Also simulate each workload alone.")
    ] = True,
    regret: Annotated[
        bool,
        typer.Option(
            "--regret/--no-regret", help="Split what is lost to the oracle (half of the time)."
        ),
    ] = True,
    seed: Seed = 0,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Estimate what a verification policy gains."""
    from draftlab import open_log
    from draftlab import simulate as run
    from draftlab.studies.simulate.simulate import CONCURRENCIES

    opened = open_log(*log, strict=strict)
    with working("simulating", quiet=quiet):
        result = run(
            opened,
            cost,
            policies=policy,
            predictors=predictor,
            concurrencies=concurrency or CONCURRENCIES,
            cap=cap,
            by_dataset=by_dataset,
            regret=regret,
            seed=seed,
            plugin=plugin,
            where=where,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.studies import print_simulation

        print_simulation(result, new_console())
    exit_on_loss(opened)


@app.command("trimming-check", epilog="Example: draftlab trimming-check off live --cost cost.json")
def trimming_check(
    log: Annotated[str, typer.Argument(help="Run collected with adaptive verification off.")],
    trimmed: Annotated[
        str, typer.Argument(help="Run of the same prompts with adaptive verification on.")
    ],
    cost: Annotated[
        str, typer.Option("--cost", "-c", help="Cost table that the trimmed run was given.")
    ] = "log",
    out: Out = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Check the simulation against a live run."""
    from draftlab import open_log
    from draftlab import trimming_check as run

    logs = [open_log(path, strict=strict) for path in (log, trimmed)]
    with working("rehearsing the trimmed run", quiet=quiet):
        result = run(*logs, cost=cost, out=out)
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.studies import print_trimming_check

        print_trimming_check(result, new_console())
    exit_on_loss(*logs)
    if not result.agrees:
        raise typer.Exit(LOSS)


@app.command(epilog="Example: draftlab audit --predictor logit_qmax --predictor logit_q_sampled")
def audit(
    log: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG", help="Logs with distributions (collect --log-distributions)."
        ),
    ] = None,
    out: Out = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option("--predictor", "-p", help="Predictor to audit. Repeatable. [default: all]"),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(help="Acceptance probability below which a draft is trimmed. Repeatable."),
    ] = None,
    plugin: Plugins = None,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Check that policies keep the target's output."""
    from draftlab import audit as run
    from draftlab import open_log
    from draftlab.studies.audit.audit import THRESHOLDS

    opened = open_log(*log, strict=strict) if log else None
    with working("auditing", quiet=quiet):
        result = run(
            opened,
            predictors=predictor,
            thresholds=threshold or THRESHOLDS,
            plugin=plugin,
            out=out,
        )
    if json_out:
        print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.console.studies import print_audit

        print_audit(result, new_console())
    if opened is not None:
        exit_on_loss(opened)
    if not result.passed:
        raise typer.Exit(LOSS)
