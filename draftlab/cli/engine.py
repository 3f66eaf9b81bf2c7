"""Commands that run an engine: collect, train-head, profile, vllm-doctor, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.cli.options import (
    LOSS,
    Json,
    Quiet,
    check_file,
    check_folder,
    new_console,
    parse_layers,
    print_json,
    require_engine,
    say,
    show_progress,
)
from draftlab.errors import InputError

if TYPE_CHECKING:
    from draftlab.engine.collect import CollectSettings, NamedAdmission, Progress
    from draftlab.hooks.doctor import Diagnosis

app = typer.Typer()


@app.command()
def collect(
    out: Annotated[
        Path, typer.Option("--out", help="Log to add the run to.", callback=check_folder)
    ] = Path("log"),
    engine: Annotated[str, typer.Option(help="reference or vllm.")] = "reference",
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
    adaptive_verification: Annotated[
        str | None,
        typer.Option(help="Trim live by this predictor: logit_qmax, hybrid, online-vllm, ..."),
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="Cost table for it: a file or HARDWARE/MODEL.")
    ] = None,
    coefficients: Annotated[
        str | None, typer.Option(help="Log of this pair that a fitted predictor is fitted on.")
    ] = None,
    log_distributions: Annotated[
        int, typer.Option(help="Also keep p and q of so many rows, for audit; 0 is none.")
    ] = 0,
    log_tree: Annotated[
        int,
        typer.Option(help="Also log so many alternatives of each draft, for eagle2; 0 is none."),
    ] = 0,
    head: Annotated[
        str | None,
        typer.Option(help="Confidence head to log, or 'none'. [default: the pair's shipped one]"),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Log token ids too.")] = False,
    raw_ids: Annotated[bool, typer.Option("--raw-ids", help="Log prompt ids unhashed.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run speculative decoding live and log every draft."""
    shared = {
        "target": target,
        "drafter": drafter,
        "draft_sample_method": draft_sample_method,
        "num_speculative_tokens": num_speculative_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "concurrency": concurrency,
        "max_new_tokens": max_new_tokens,
        "max_labelled": max_labelled,
        "seed": seed,
        "dtype": dtype,
        "tokens": tokens,
        "raw_ids": raw_ids,
    }
    if engine == "vllm":
        folder = _collect_vllm(out, prompts, shared, quiet=quiet)
    elif engine == "reference":
        own = {
            "skip_layers": parse_layers(skip_layers),
            "prompts": tuple(prompts or ()),
            "device": device,
            "log_distributions": log_distributions,
            "log_tree": log_tree,
            "head": head,
        }
        trimming = (adaptive_verification, cost, coefficients)
        folder = _collect_reference(out, shared | own, trimming, quiet=quiet)
    else:
        raise InputError(f"unknown engine {engine!r}; known: reference, vllm")
    say(f"wrote {folder}", quiet=quiet)


def _collect_reference(
    out: Path,
    settings: dict[str, Any],
    trimming: tuple[str | None, str | None, str | None],
    *,
    quiet: bool,
) -> Path:
    require_engine()
    from draftlab.engine.collect import CollectSettings

    name, cost, log = trimming
    admission = None
    if name is not None:
        K = settings["num_speculative_tokens"]
        admission = _make_admission(name, cost, log, K)
    return _collect(out, CollectSettings(**settings), admission=admission, quiet=quiet)


def _make_admission(
    name: str, cost: str | None, log: str | None, num_speculative_tokens: int
) -> NamedAdmission:
    from draftlab.policies.adaptive import coefficients_of, make_admission
    from draftlab.policies.cost import find_cost

    if cost is None:
        raise InputError(
            "--adaptive-verification needs --cost: a file of `draftlab profile`, or a model such "
            "as L4/llama-8b"
        )
    known = None
    if log is not None:
        from draftlab.studies.evaluate import evaluate

        fitted = ("logit_qmax", "logit_q_sampled") if name == "hybrid" else (name,)
        known = coefficients_of(evaluate(log, predictors=fitted).coefficients)
    return make_admission(name, find_cost(cost), num_speculative_tokens, coefficients=known)


def _collect_vllm(
    out: Path, prompts: list[str] | None, settings: dict[str, Any], *, quiet: bool
) -> Path:
    if settings["target"] == "embedded":
        raise InputError("vLLM needs a --target: the embedded default is a GGUF without drafter")
    from draftlab.engine.prompts import load_prompts, load_suites
    from draftlab.hooks.offline import VllmSettings, collect_vllm

    asked = load_prompts(prompts) if prompts else load_suites()
    with show_progress("collecting", len(asked), quiet=quiet) as advance:
        return collect_vllm(
            out,
            VllmSettings(**settings),
            asked,
            on_step=lambda p: advance(p.finished, f"{p.finished} answers, {p.emitted} tokens"),
        )


@app.command("train-head")
def train_head(
    out: Annotated[
        Path, typer.Option("--out", help="File to write, .safetensors.", callback=check_file)
    ],
    label: Annotated[
        str, typer.Option(help="overlap (exact acceptance) or accepted (decisions).")
    ] = "overlap",
    units: Annotated[int, typer.Option(help="Hidden layer; 0 is a linear probe.")] = 64,
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
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to learn from.")] = 90_000,
    seed: int = 1,
    device: Annotated[str, typer.Option(help="As in collect.")] = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train a confidence head on the drafter's hidden state."""
    require_engine()
    from draftlab.engine.collect import CollectSettings
    from draftlab.engine.training import train_head as run

    settings = CollectSettings(
        target=target,
        drafter=drafter,
        skip_layers=parse_layers(skip_layers),
        prompts=tuple(prompts or ()),
        num_speculative_tokens=num_speculative_tokens,
        temperature=temperature,
        top_p=top_p,
        max_labelled=max_labelled,
        seed=seed,
        device=device,
    )
    with show_progress("training", max_labelled, quiet=quiet) as advance:
        trained = run(
            out,
            settings,
            label=label,
            units=units,
            mismatch_weight=mismatch_weight,
            on_step=lambda p: advance(p.labelled, f"{p.labelled} labelled drafts"),
        )
    facts = trained.metadata
    say(
        f"wrote {out}: {facts['pair']}, {facts['examples']} drafts of {facts['prompts']} prompts, "
        f"held-out log-loss {facts['held_out_log_loss']:.4f}, AUC {facts['held_out_auc']:.4f} "
        f"(logit_qmax {facts['held_out_auc_logit_qmax']:.4f})",
        quiet=quiet,
    )


@app.command()
def profile(
    out: Annotated[Path, typer.Option("--out", help="File to write.", callback=check_file)] = Path(
        "cost.json"
    ),
    target: Annotated[str, typer.Option(help="As in collect.")] = "embedded",
    drafter: Annotated[str | None, typer.Option(help="As in collect.")] = None,
    skip_layers: Annotated[str | None, typer.Option(help="As in collect.")] = None,
    num_speculative_tokens: Annotated[int, typer.Option(help="As in collect.")] = 5,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests in a step, repeatable.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Steps measured per size.")] = 5,
    device: Annotated[str, typer.Option(help="As in collect.")] = "cpu",
    quiet: Quiet = False,
) -> None:
    """Measure what a step of the reference engine costs here, by its size."""
    require_engine()
    from draftlab.engine.collect import CollectSettings
    from draftlab.engine.profile import CONCURRENCIES
    from draftlab.engine.profile import profile as run
    from draftlab.policies.cost import StepSizes, table_from_steps

    settings = CollectSettings(
        target=target,
        drafter=drafter,
        skip_layers=parse_layers(skip_layers),
        num_speculative_tokens=num_speculative_tokens,
        device=device,
    )
    with show_progress("profiling", None, quiet=quiet) as advance:
        sizes = run(
            settings,
            concurrencies=concurrency or CONCURRENCIES,
            repetitions=repetitions,
            on_step=lambda done, total: advance(done, f"step {done} of {total}"),
        )
    table = table_from_steps(
        StepSizes(**sizes),
        num_speculative_tokens=num_speculative_tokens,
        name=f"{target} on {device}",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    say(f"wrote {table.write(out)}: {table.note}", quiet=quiet)


@app.command("vllm-doctor")
def vllm_doctor(
    speculative_config: Annotated[
        str | None, typer.Argument(help="JSON, as given to vllm serve --speculative-config.")
    ] = None,
    json_out: Json = False,
) -> None:
    """Say what the hook would record with the installed vLLM and a speculative config."""
    from draftlab.hooks.doctor import vllm_doctor as run

    diagnosis = run(speculative_config)
    if json_out:
        print_json(diagnosis.to_dict())
    else:
        _print_diagnosis(diagnosis)
    if diagnosis.problems:
        raise typer.Exit(LOSS)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    from rich.table import Table

    console = new_console()
    console.print(
        f"vLLM {diagnosis.vllm}, {diagnosis.speculator}, {diagnosis.drafting} drafting",
        markup=False,
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for title in ("column", "recorded", "remark"):
        table.add_column(title)
    for row in diagnosis.table():
        table.add_row(*row)
    console.print(table)
    for kind, lines in (("problem", diagnosis.problems), ("note", diagnosis.notes)):
        for line in lines:
            console.print(f"{kind}: {line}", markup=False, highlight=False)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the demo.", callback=check_folder)
    ] = Path("reports/demo"),
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to collect.")] = 10_000,
    seed: int = 0,
    quiet: Quiet = False,
) -> None:
    """Do the whole job on the embedded default, from collecting to the report."""
    require_engine()
    from draftlab.engine.collect import CollectSettings

    folder = _collect(
        out / "log", CollectSettings(max_labelled=max_labelled, seed=seed), quiet=quiet
    )
    index = _study(folder, out, quiet=quiet)
    say(f"log     {folder}\nreport  {index}", quiet=quiet)


def _study(log: Path, out: Path, *, quiet: bool) -> Path:
    """Run every experiment over a log and write the report."""
    from draftlab.log.reader import open_log
    from draftlab.online.vllm import Constants
    from draftlab.policies.cost import find_cost
    from draftlab.reporting.console.studies import print_simulation
    from draftlab.reporting.render import report
    from draftlab.reporting.replays import print_replay
    from draftlab.reporting.tables import print_evaluation
    from draftlab.studies.audit.audit import audit
    from draftlab.studies.evaluate import evaluate
    from draftlab.studies.replay.replay import ReplaySettings, replay
    from draftlab.studies.simulate.simulate import simulate

    opened = open_log(log)
    evaluated = evaluate(opened, out=out)
    # A short log holds fewer steps than vLLM's interval of 100.
    settings = ReplaySettings(constants=Constants(refit_interval=10), window=10)
    replayed = replay(opened, settings=settings, out=out)
    # This drafter is slower than plain decoding on a CPU, so the economics are those of a model.
    simulated = simulate(
        opened,
        find_cost(_DEMO_COST),
        predictors=["logit_qmax", "qmax", "constant", "oracle"],
        concurrencies=[64, 256],
        by_dataset=False,
        out=out,
    )
    audited = audit(out=out)
    if not quiet:
        console = new_console()
        print_evaluation(evaluated, console)
        print_replay(replayed, console)
        if _SAMPLE.is_dir():  # a run long enough for vLLM's own interval; not in the wheel
            print_replay(replay(_SAMPLE), console)
        print_simulation(simulated, console)
        state = "theory and numbers agree" if audited.passed else "theory and numbers DISAGREE"
        say(f"\naudit: {len(audited.checks)} checks of losslessness, {state}", quiet=quiet)
    return report(
        opened,
        out,
        evaluation=evaluated,
        replay=replayed,
        simulation=simulated,
        audit=audited,
    )


_DEMO_COST = "H100/llama-8b"
_SAMPLE = Path("data/sample")


def _collect(
    out: Path, settings: CollectSettings, *, admission: NamedAdmission | None = None, quiet: bool
) -> Path:
    from draftlab.engine.collect import collect as run

    with show_progress("collecting", settings.max_labelled, quiet=quiet) as advance:

        def on_step(progress: Progress) -> None:
            advance(
                progress.labelled,
                f"{progress.labelled} labelled drafts, step {progress.steps}, "
                f"{progress.finished} answers",
            )

        return run(out, settings, admission=admission, on_step=on_step)
