"""Command line: one command, one library call. Heavy imports stay inside the commands."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from draftlab.engine.collect import Progress, Settings
    from draftlab.log.reader import DraftLog
    from draftlab.replaying import Settings as ReplaySettings

app = typer.Typer(
    name="draftlab",
    help="Offline analysis and feature evaluation for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DONE, LOSS, BAD_INPUT = 0, 1, 2
"""Exit codes: done, finished with loss or a failed check, bad input or usage."""

Logs = Annotated[
    list[str], typer.Argument(metavar="LOG...", help="Logs or single runs, local or remote.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Write the tables below this folder.")]
Json = Annotated[bool, typer.Option("--json", help="Machine output on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse a log with unreadable parts.")]


def main() -> None:
    """Run the command line; bad input ends in one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"draftlab: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(130)


def _version(show: bool) -> None:
    if show:
        from draftlab import __version__

        typer.echo(f"draftlab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Offline analysis and feature evaluation for speculative decoding."""


@app.command()
def collect(
    out: Annotated[Path, typer.Option("--out", help="Log to add the run to.")] = Path("log"),
    target: Annotated[
        str, typer.Option(help="Hugging Face folder, .gguf file, or 'embedded'.")
    ] = "embedded",
    drafter: Annotated[
        str | None,
        typer.Option(help="Checkpoint with the target's vocabulary. [default: skip layers]"),
    ] = None,
    skip_layers: Annotated[
        str | None,
        typer.Option(help="Layers the drafter leaves out, '4,7,16', or 'search:6' to choose six."),
    ] = None,
    draft_sample_method: Annotated[
        str, typer.Option(help="How drafts are drawn: probabilistic or greedy.")
    ] = "probabilistic",
    prompts: Annotated[
        list[str] | None,
        typer.Option(help="Prompt file (JSON lines or text), repeatable. [default: own suites]"),
    ] = None,
    num_speculative_tokens: Annotated[int, typer.Option(help="K, draft tokens a proposal.")] = 5,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.6,
    top_p: Annotated[float, typer.Option(help="On the target side, as in vLLM.")] = 0.95,
    top_k: Annotated[int, typer.Option(help="On the target side; 0 is off.")] = 0,
    min_p: Annotated[float, typer.Option(help="On the target side; 0 is off.")] = 0.0,
    concurrency: Annotated[int, typer.Option(help="Requests in a batch.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens an answer.")] = 128,
    max_labelled: Annotated[
        int | None,
        typer.Option(help="Stop after so many labelled drafts. [default: each prompt once]"),
    ] = None,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")] = "auto",
    head: Annotated[
        str | None,
        typer.Option(help="Confidence head to log, or 'none'. [default: the pair's shipped one]"),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Log token ids too.")] = False,
    raw_ids: Annotated[bool, typer.Option("--raw-ids", help="Log prompt ids unhashed.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run speculative decoding live and log every draft."""
    _require_engine()
    from draftlab.engine.collect import Settings

    settings = Settings(
        target=target,
        drafter=drafter,
        skip_layers=_parse_layers(skip_layers),
        draft_sample_method=draft_sample_method,
        prompts=tuple(prompts or ()),
        num_speculative_tokens=num_speculative_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        concurrency=concurrency,
        max_new_tokens=max_new_tokens,
        max_labelled=max_labelled,
        seed=seed,
        device=device,
        dtype=dtype,
        head=head,
        tokens=tokens,
        raw_ids=raw_ids,
    )
    folder = _collect(out, settings, quiet=quiet)
    _say(f"wrote {folder}", quiet=quiet)


@app.command()
def inspect(
    log: Logs, json_out: Json = False, quiet: Quiet = False, strict: Strict = False
) -> None:
    """Say what is in a log and run its checks."""
    from draftlab.log.reader import open_log
    from draftlab.log.summary import inspect_log, print_summary

    summary, findings = inspect_log(open_log(*log, strict=strict))
    if json_out:
        _print_json(summary)
    elif not quiet:
        print_summary(summary)
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(LOSS)


@app.command()
def evaluate(
    log: Logs,
    out: Out = None,
    predictor: Annotated[
        list[str] | None, typer.Option(help="Grade only this predictor, repeatable.")
    ] = None,
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="Fit and grade on the same rows, as published.")
    ] = False,
    folds: Annotated[int, typer.Option(help="Folds by prompt, for cross-fitting.")] = 5,
    n_bins: Annotated[int, typer.Option(help="Equal-width bins of ECE.")] = 15,
    own_slopes: Annotated[
        bool, typer.Option("--own-slopes", help="Ablation: one slope per position.")
    ] = False,
    allow_selected: Annotated[
        bool, typer.Option("--allow-selected", help="Grade a log that was trimmed live.")
    ] = False,
    json_out: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Refit every feature and grade every predictor."""
    from draftlab.evaluation import evaluate as run
    from draftlab.log.reader import open_log

    opened = open_log(*log, strict=strict)
    result = run(
        opened,
        predictors=predictor,
        in_sample=in_sample,
        folds=folds,
        n_bins=n_bins,
        own_slopes=own_slopes,
        allow_selected=allow_selected,
        out=out,
    )
    if json_out:
        _print_json(result.to_dict())
    elif not quiet:
        from draftlab.reporting.tables import print_evaluation

        print_evaluation(result, _console())
    _exit_on_loss(opened)


@app.command("train-head")
def train_head(
    out: Annotated[Path, typer.Option("--out", help="File to write, .safetensors.")],
    label: Annotated[
        str, typer.Option(help="overlap (exact acceptance) or accepted (decisions).")
    ] = "overlap",
    mismatch_weight: Annotated[
        float, typer.Option(help="Weight of rejections; SpecDec++ uses 6.")
    ] = 1.0,
    prompts: Annotated[
        list[str] | None,
        typer.Option(help="Prompt file, repeatable. [default: the training suite]"),
    ] = None,
    target: Annotated[str, typer.Option(help="As in collect.")] = "embedded",
    drafter: Annotated[str | None, typer.Option(help="As in collect.")] = None,
    skip_layers: Annotated[str | None, typer.Option(help="As in collect.")] = None,
    temperature: Annotated[float, typer.Option(help="As in collect.")] = 0.6,
    top_p: Annotated[float, typer.Option(help="As in collect.")] = 0.95,
    num_speculative_tokens: Annotated[int, typer.Option(help="As in collect.")] = 5,
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to learn from.")] = 30_000,
    seed: int = 1,
    device: Annotated[str, typer.Option(help="As in collect.")] = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train a linear confidence head on the drafter's hidden state."""
    _require_engine()
    from draftlab.engine.collect import Settings
    from draftlab.engine.training import train_head as run

    settings = Settings(
        target=target,
        drafter=drafter,
        skip_layers=_parse_layers(skip_layers),
        prompts=tuple(prompts or ()),
        num_speculative_tokens=num_speculative_tokens,
        temperature=temperature,
        top_p=top_p,
        max_labelled=max_labelled,
        seed=seed,
        device=device,
    )
    with _progress("training", max_labelled, quiet=quiet) as advance:
        trained = run(
            out,
            settings,
            label=label,
            mismatch_weight=mismatch_weight,
            on_step=lambda p: advance(p.labelled, f"{p.labelled} labelled drafts"),
        )
    facts = trained.metadata
    _say(
        f"wrote {out}: {facts['pair']}, {facts['examples']} drafts of {facts['prompts']} prompts, "
        f"held-out log-loss {facts['held_out_log_loss']:.4f}",
        quiet=quiet,
    )


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
        typer.Option(help="Constants to sweep, 'refit-interval=25,50', repeatable."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of a sweep.")] = 2,
    scenario: Annotated[
        str | None,
        typer.Option(help="Drift experiment, 'copying@300 > fiction=3+chat=1@300'."),
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
    from draftlab.replaying import Settings

    opened = open_log(*log, strict=strict)
    settings = Settings(
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
        _sweep(log, sweep, settings, processes, out=out, json_out=json_out, quiet=quiet)
    elif scenario is not None:
        experiment = (scenario, repeat, proposals_per_step)
        _drift(opened, experiment, settings, out=out, json_out=json_out, quiet=quiet)
    else:
        _replay(opened, settings, out=out, json_out=json_out, quiet=quiet)
    _exit_on_loss(opened)


def _replay(
    log: DraftLog, settings: ReplaySettings, *, out: Path | None, json_out: bool, quiet: bool
) -> None:
    from draftlab.replaying import replay as run
    from draftlab.reporting.replays import print_replay

    result = run(log, settings=settings, out=out)
    if json_out:
        _print_json(result.to_dict())
    elif not quiet:
        print_replay(result, _console())


def _sweep(
    log: list[str],
    grid: list[str],
    settings: ReplaySettings,
    processes: int,
    *,
    out: Path | None,
    json_out: bool,
    quiet: bool,
) -> None:
    from draftlab.log.files import replace_file
    from draftlab.reporting.replays import print_table
    from draftlab.sweeping import parse_grid
    from draftlab.sweeping import sweep as run

    constants = parse_grid(grid)
    with _progress("sweeping", None, quiet=quiet or json_out) as advance:
        table = run(
            log,
            constants,
            estimator=settings.estimators[0],
            settings=settings,
            processes=processes,
            on_done=lambda done, total: advance(done, f"{done} of {total} combinations"),
        )
    if out is not None:
        replace_file(out / "replay" / "sweep.parquet", table.write_parquet)
    if json_out:
        _print_json({"command": "replay", "sweep": table.to_dicts()})
    elif not quiet:
        print_table(table.drop("run", "pair", "drafting", "estimator"), _console())


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

    from draftlab.drifting import drift, parse_scenario
    from draftlab.reporting.replays import print_table

    text, repeat, proposals_per_step = experiment
    result = drift(
        log,
        parse_scenario(text, repeat=repeat),
        settings=replace(settings, window=min(settings.window, 10)),
        proposals_per_step=proposals_per_step,
        out=out,
    )
    table = result.recovery.drop("run", "pair", "drafting")
    if json_out:
        _print_json({"command": "replay", "recovery": table.to_dicts()})
    elif not quiet:
        print_table(table, _console())


@app.command()
def report(
    log: Logs,
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("report"),
    in_sample: Annotated[
        bool, typer.Option("--in-sample", help="Fit and grade on the same rows, as published.")
    ] = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Write a self-contained HTML report of a log."""
    from draftlab.log.reader import open_log
    from draftlab.reporting.render import report as run

    opened = open_log(*log, strict=strict)
    _say(f"wrote {run(opened, out, in_sample=in_sample)}", quiet=quiet)
    _exit_on_loss(opened)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the demo.")] = Path("reports/demo"),
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to collect.")] = 10_000,
    seed: int = 0,
    quiet: Quiet = False,
) -> None:
    """Do the whole job on the embedded default: collect, evaluate, replay, report."""
    _require_engine()
    from draftlab.engine.collect import Settings
    from draftlab.evaluation import evaluate as run_evaluate
    from draftlab.log.reader import open_log
    from draftlab.online.vllm import Constants
    from draftlab.replaying import Settings as Replayed
    from draftlab.replaying import replay as run_replay
    from draftlab.reporting.render import report as run_report
    from draftlab.reporting.replays import print_replay
    from draftlab.reporting.tables import print_evaluation

    folder = _collect(out / "log", Settings(max_labelled=max_labelled, seed=seed), quiet=quiet)
    log = open_log(folder)
    result = run_evaluate(log, out=out)
    # A short log holds fewer steps than vLLM's interval of 100.
    settings = Replayed(constants=Constants(refit_interval=10), window=10)
    replayed = run_replay(log, settings=settings, out=out)
    if not quiet:
        print_evaluation(result, _console())
        print_replay(replayed, _console())
    index = run_report(log, out, evaluation=result, replay=replayed)
    _say(f"log     {folder}\nreport  {index}", quiet=quiet)


def _exit_on_loss(log: DraftLog) -> None:
    """Name unreadable parts on standard error and exit with the code for loss."""
    for problem in log.problems:
        typer.echo(f"draftlab: {problem.path}: {problem.message}", err=True)
    if log.problems:
        raise typer.Exit(LOSS)


def _parse_layers(text: str | None) -> tuple[int, ...] | int | None:
    if text is None:
        return None
    kind, _, count = text.partition(":")
    try:
        if kind == "search":
            return int(count)
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--skip-layers {text!r}: wanted layers such as 4,7,16 or search:6"
        ) from None


def _require_engine() -> None:
    """Name everything that the engine lacks at once."""
    from importlib.util import find_spec

    from draftlab.errors import MissingExtraError

    needed = ("torch", "transformers", "gguf", "safetensors")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise MissingExtraError(
            f"the reference engine needs {', '.join(missing)}; install `draftlab[engine]`"
        )


def _collect(out: Path, settings: Settings, *, quiet: bool) -> Path:
    from draftlab.engine.collect import collect as run

    with _progress("collecting", settings.max_labelled, quiet=quiet) as advance:

        def on_step(progress: Progress) -> None:
            advance(
                progress.labelled,
                f"{progress.labelled} labelled drafts, step {progress.steps}, "
                f"{progress.finished} answers",
            )

        return run(out, settings, on_step=on_step)


@contextlib.contextmanager
def _progress(title: str, total: int | None, *, quiet: bool) -> Iterator[Any]:
    """Show a progress bar on a terminal; off one, a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(f"{title}: loading", total=total)

        def advance(completed: int, description: str) -> None:
            bar.update(task, completed=completed, description=f"{title}: {description}")

        yield advance


def _console() -> Console:
    """Return a console that is wide enough for our tables where there is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        typer.echo(text)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, allow_nan=False))
