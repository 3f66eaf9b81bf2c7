"""Commands that run an engine: collect, train-head, profile, vllm-doctor, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlab.cli.options import (
    LOSS,
    Json,
    Quiet,
    Seed,
    check_file,
    check_folder,
    new_console,
    print_json,
    say,
    show_progress,
    typed_options,
)

if TYPE_CHECKING:
    from draftlab.hooks.doctor import Diagnosis
    from draftlab.results import Result

app = typer.Typer()

Target = Annotated[str, typer.Option(help="Hugging Face folder, .gguf file, or 'embedded'.")]
Drafter = Annotated[
    str | None,
    typer.Option(help="Checkpoint with the target's vocabulary. [default: skip layers]"),
]
SkipLayers = Annotated[
    str | None,
    typer.Option(help="Layers the drafter leaves out: '4,7,16', or 'search:6' to choose six."),
]
DraftSampleMethod = Annotated[
    str, typer.Option(help="How drafts are drawn: probabilistic or greedy.")
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(help="Prompt file (JSON lines or text). Repeatable. [default: own suites]"),
]
K = Annotated[
    int, typer.Option("--num-speculative-tokens", "-k", help="K, draft tokens per proposal.")
]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus of the target, as in vLLM.")]
Concurrency = Annotated[int, typer.Option(help="Requests in a batch.")]
MaxNewTokens = Annotated[int, typer.Option(help="Maximum tokens generated per answer.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


@app.command(epilog="Example: draftlab collect --out mylog --max-labelled 20000")
def collect(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Log to add the run to.", callback=check_folder),
    ] = Path("log"),
    engine: Annotated[str, typer.Option(help="reference or vllm.")] = "reference",
    target: Target = "embedded",
    drafter: Drafter = None,
    skip_layers: SkipLayers = None,
    draft_sample_method: DraftSampleMethod = "probabilistic",
    prompts: Prompts = None,
    num_speculative_tokens: K = 5,
    temperature: Temperature = 0.6,
    top_p: TopP = 0.95,
    top_k: Annotated[int, typer.Option(help="Top-k of the target; 0 is off.")] = 0,
    min_p: Annotated[float, typer.Option(help="Min-p of the target; 0 is off.")] = 0.0,
    concurrency: Concurrency = 64,
    max_new_tokens: MaxNewTokens = 128,
    max_labelled: Annotated[
        int | None,
        typer.Option(help="Stop after so many labelled drafts. [default: each prompt once]"),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float32 or float64.")] = "auto",
    adaptive_verification: Annotated[
        str | None,
        typer.Option(help="Trim live by this predictor: logit_qmax, hybrid, online-vllm, ..."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option("--cost", "-c", help="Cost table for it: a file or HARDWARE/MODEL."),
    ] = None,
    fit_on: Annotated[
        str | None, typer.Option(help="Log used to fit the predictor it trims by.")
    ] = None,
    log_distributions: Annotated[
        int, typer.Option(help="Also keep p and q of this many rows, for audit; 0 is none.")
    ] = 0,
    log_tree: Annotated[
        int, typer.Option(help="Also log this many alternatives per draft, for eagle2; 0 is none.")
    ] = 0,
    head: Annotated[
        str | None,
        typer.Option(help="Confidence head to log, or 'none'. [default: the pair's shipped one]"),
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Log token ids too.")] = False,
    raw_ids: Annotated[bool, typer.Option("--raw-ids", help="Log prompt ids unhashed.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run speculative decoding and log every draft."""
    from draftlab import collect as run

    with show_progress("collecting", max_labelled, quiet=quiet) as advance:
        folder = run(
            out,
            **typed_options(ctx, "out", "quiet"),
            on_step=lambda p: advance(getattr(p, "labelled", p.finished), _progress(p)),
        )
    say(f"wrote {folder}", quiet=quiet)


def _progress(progress: Any) -> str:
    """Say what an engine has done: only the reference engine counts labels as it goes."""
    if hasattr(progress, "labelled"):
        return (
            f"{progress.labelled} labelled drafts, step {progress.steps}, "
            f"{progress.finished} answers"
        )
    return f"{progress.finished} answers, {progress.emitted} tokens"


@app.command("train-head", epilog="Example: draftlab train-head --out head.safetensors")
def train_head(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write, .safetensors.", callback=check_file)
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
        typer.Option(help="Prompt file. Repeatable. [default: the training suite]"),
    ] = None,
    target: Target = "embedded",
    drafter: Drafter = None,
    skip_layers: SkipLayers = None,
    num_speculative_tokens: K = 5,
    temperature: Temperature = 0.6,
    top_p: TopP = 0.95,
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to learn from.")] = 90_000,
    seed: Seed = 1,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train a confidence head."""
    from draftlab import train_head as run

    with show_progress("training", max_labelled, quiet=quiet) as advance:
        trained = run(
            out,
            **typed_options(ctx, "out", "quiet"),
            on_step=lambda p: advance(p.labelled, f"{p.labelled} labelled drafts"),
        )
    facts = trained.metadata
    say(
        f"wrote {out}: {facts['pair']}, {facts['examples']} drafts of {facts['prompts']} prompts, "
        f"held-out log-loss {facts['held_out_log_loss']:.4f}, AUC {facts['held_out_auc']:.4f} "
        f"(logit_qmax {facts['held_out_auc_logit_qmax']:.4f})",
        quiet=quiet,
    )


@app.command(epilog="Example: draftlab profile --out cost.json --concurrency 1 --concurrency 64")
def profile(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write.", callback=check_file)
    ] = Path("cost.json"),
    target: Target = "embedded",
    drafter: Drafter = None,
    skip_layers: SkipLayers = None,
    num_speculative_tokens: K = 5,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests in a step. Repeatable.")
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Steps measured per size.")] = 5,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Measure what an engine step costs here."""
    from draftlab import profile as run

    given = typed_options(ctx, "out", "quiet", "concurrency")
    with show_progress("profiling", None, quiet=quiet) as advance:
        table = run(
            out,
            **given,
            concurrencies=concurrency,
            on_step=lambda done, total: advance(done, f"step {done} of {total}"),
        )
    say(f"wrote {out}: {table.note}", quiet=quiet)


@app.command("vllm-doctor", epilog='Example: draftlab vllm-doctor \'{"model": "DRAFTER"}\'')
def vllm_doctor(
    speculative_config: Annotated[
        str | None, typer.Argument(help="JSON, as given to vllm serve --speculative-config.")
    ] = None,
    json_out: Json = False,
) -> None:
    """Show what the vLLM hook would record."""
    from draftlab import vllm_doctor as run

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


@app.command(epilog="Example: draftlab demo --out demo")
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the demo.", callback=check_folder)
    ] = Path("reports/demo"),
    max_labelled: Annotated[int, typer.Option(help="Labelled drafts to collect.")] = 10_000,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Do the whole job on the embedded default."""
    from draftlab import demo as run

    shown: list[Result] = []
    with show_progress("collecting", max_labelled, quiet=quiet) as advance:
        index = run(
            out,
            max_labelled=max_labelled,
            seed=seed,
            on_step=lambda p: advance(p.labelled, _progress(p)),
            on_result=shown.append,
        )
    for result in [] if quiet else shown:
        _print_result(result)
    say(f"report  {index}", quiet=quiet)


def _print_result(result: Any) -> None:
    from draftlab.reporting.console.evaluate import print_evaluation
    from draftlab.reporting.console.replay import print_replay
    from draftlab.reporting.console.studies import print_simulation

    printers: dict[str, Any] = {
        "evaluate": print_evaluation,
        "replay": print_replay,
        "simulate": print_simulation,
    }
    if result.command in printers:
        printers[result.command](result, new_console())
    else:
        state = "theory and numbers agree" if result.passed else "theory and numbers DISAGREE"
        typer.echo(f"\naudit: {len(result.checks)} checks of losslessness, {state}")
