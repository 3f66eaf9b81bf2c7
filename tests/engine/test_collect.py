"""Collecting end to end with a tiny checkpoint of our own, tokenizer and chat template included."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from draftlab import evaluate, open_log
from draftlab.engine.collect import CollectSettings, Progress, collect
from draftlab.engine.confidence import ConfidenceHead, save_head
from draftlab.engine.training import train_head
from draftlab.errors import InputError
from draftlab.log.checks import run_checks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # transformers' model classes take seconds to import

CHARACTERS = "abcdefghijklmnopqrstuvwxyz "
CHAT = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def make_checkpoint(path: Path, *, layers: int = 4, seed: int = 0, vocab: int | None = None) -> str:
    # its models take seconds to import
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["</s>", "<u>", "<a>"]
    names = [*special, *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        additional_special_tokens=special[1:],
        chat_template=CHAT,
    ).save_pretrained(path)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab or len(names),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture
def prompts(tmp_path: Path) -> tuple[str, ...]:
    words = ["ant", "bee", "cat", "dog", "eel", "fox"]
    for name, style in (("first", "say {}"), ("second", "count {} and {}")):
        lines = [
            json.dumps({"id": f"{name}/{i}", "prompt": style.format(w, words[i - 1])})
            for i, w in enumerate(words)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return (str(tmp_path / "first.jsonl"), str(tmp_path / "second.jsonl"))


def settings(checkpoint: str, prompts: tuple[str, ...], **changes: Any) -> CollectSettings:
    defaults: dict[str, Any] = {
        "target": checkpoint,
        "skip_layers": (1,),
        "prompts": prompts,
        "num_speculative_tokens": 3,
        "temperature": 1.0,
        "top_p": 0.9,
        "concurrency": 5,
        "max_new_tokens": 12,
        "dtype": "float32",
    }
    return CollectSettings(**defaults | changes)


def test_a_collected_log_is_complete_and_sound(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    seen: list[Progress] = []
    folder = collect(tmp_path / "log", settings(checkpoint, prompts), on_step=seen.append)
    log = open_log(tmp_path / "log")
    assert [f.code for f in run_checks(log) if f.severity != "note"] == []
    requests, drafts, steps = (
        log.scan(table).collect() for table in ("requests", "drafts", "steps")
    )
    assert folder.name == log.runs[0].name
    assert requests["dataset"].to_list()[:4] == ["first", "second", "first", "second"]
    assert requests["group"].n_unique() == requests.height == 12
    assert requests["finish_reason"].is_in(["stop", "length"]).all()
    assert not requests["external_id"].str.contains("first").any()
    assert requests["top_k"].null_count() == 12
    assert steps["step"].to_list() == list(range(steps.height))
    assert steps["num_emitted"].sum() == requests["output_tokens"].sum()
    assert steps["num_proposed"].sum() == drafts.height
    for name in ("logit_qmax", "entropy", "overlap", "accept_prob", "target_margin"):
        assert drafts.filter(pl.col("verify_step").is_not_null())[name].null_count() == 0, name
    assert drafts["token"].null_count() == drafts.height
    ordered = drafts.select("step", "slot", "position")
    assert ordered.equals(ordered.sort("step", "slot", "position"))
    assert log.runs[0].metadata["provenance"]["settings"]["top_p"] == 0.9
    assert evaluate(log, in_sample=True).metrics.height > 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_rows(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    frames = []
    for run, concurrency, seed in ((0, 5, 3), (1, 5, 3), (2, 2, 3), (3, 5, 4)):
        collect(
            tmp_path / str(run), settings(checkpoint, prompts, seed=seed, concurrency=concurrency)
        )
        rows = open_log(tmp_path / str(run)).drafts.drop("run").collect()
        frames.append(rows)
    keys = ["request", "output_index", "position"]
    assert frames[0].equals(frames[1])
    # In other batches the same requests draw the same drafts and meet the same verdicts.
    by_request = [f.sort(keys).select(*keys, "accepted", "admitted") for f in frames]
    assert by_request[0].equals(by_request[2])
    assert not by_request[0].equals(by_request[3])


@pytest.mark.slow
def test_a_limit_cycles_through_prompts_and_keeps_groups(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    collect(tmp_path / "log", settings(checkpoint, prompts, max_labelled=400))
    log = open_log(tmp_path / "log")
    requests = log.requests.collect()
    assert requests.height > 12 == requests["group"].n_unique()
    assert "abort" in requests["finish_reason"].to_list()
    eligible = log.drafts.filter(pl.col("accepted").is_not_null() & (pl.col("excluded") == 0))
    assert 400 <= eligible.select(pl.len()).collect().item() < 400 + 5 * 3
    pending = log.drafts.filter(pl.col("verify_step").is_null()).collect()
    assert not pending["admitted"].any()


def test_greedy_drafting_logs_the_softmax(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    collect(tmp_path / "log", settings(checkpoint, prompts, draft_sample_method="greedy"))
    rows = open_log(tmp_path / "log").drafts.filter(pl.col("overlap").is_not_null()).collect()
    assert rows["logit_q_sampled"].equals(rows["logit_qmax"])
    assert rows["logit_qmax"].is_finite().all()
    assert rows["overlap"].equals(rows["accept_prob"])  # both are p(x)


def test_a_separate_drafter_and_greedy_requests(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    drafter = make_checkpoint(tmp_path / "drafter", layers=1, seed=1)
    chosen = settings(
        checkpoint, prompts, drafter=drafter, skip_layers=None, temperature=0.0, tokens=True
    )
    collect(tmp_path / "log", chosen)
    log = open_log(tmp_path / "log")
    assert log.runs[0].metadata["method"] == "draft_model"
    assert log.runs[0].metadata["drafter"] == "drafter"
    rows = log.drafts.filter(pl.col("accepted").is_not_null()).collect()
    assert rows["accepted"].cast(pl.Float32).equals(rows["overlap"].rename("accepted"))
    assert rows["token"].null_count() == 0


def test_vocabularies_must_agree(tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]) -> None:
    other = make_checkpoint(tmp_path / "other", vocab=64)
    with pytest.raises(InputError, match="must share one vocabulary"):
        collect(tmp_path / "log", settings(checkpoint, prompts, drafter=other, skip_layers=None))
    assert not (tmp_path / "log").exists()


def test_later_turns_follow_with_the_answer(tmp_path: Path, checkpoint: str) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text('{"question_id": 1, "turns": ["say ant", "say bee", "say cat"]}')
    collect(tmp_path / "log", settings(checkpoint, (str(path),), raw_ids=True))
    requests = open_log(tmp_path / "log").requests.collect()
    assert requests["external_id"].to_list() == ["1", "1", "1"]
    assert requests["group"].n_unique() == 1
    first, second, third = requests["prompt_tokens"].to_list()
    assert first < second < third
    # The prompt of a turn holds the former one, its answer and the next question.
    answer = requests["output_tokens"][0]
    assert second <= first + answer + len("<u>say bee<a>")


@pytest.mark.parametrize("skip", [(9,), (), (0, 1, 2, 3), 4])
def test_a_skip_set_must_name_some_layers(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...], skip: Any
) -> None:
    with pytest.raises(InputError, match="layers"):
        collect(tmp_path / "log", settings(checkpoint, prompts, skip_layers=skip))


def test_a_skip_set_can_be_searched(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    collect(tmp_path / "log", settings(checkpoint, prompts, skip_layers=2, max_labelled=50))
    name = open_log(tmp_path / "log").runs[0].metadata["drafter"]
    assert name.startswith("skip {")
    assert len(name.split(",")) == 2


def test_an_interruption_keeps_what_is_there(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.steps == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "log", settings(checkpoint, prompts), on_step=interrupt)
    log = open_log(tmp_path / "log")
    assert log.steps.collect().height == 6
    assert [f.code for f in run_checks(log) if f.severity != "note"] == []
    assert log.runs[0].metadata["closed"]


@pytest.mark.slow
def test_a_trained_head_is_logged_as_confidence(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    """Trained on one run, graded on another: better than no feature, known before the draw."""
    learn = settings(checkpoint, prompts, max_labelled=3000, concurrency=12, seed=5)
    head = train_head(tmp_path / "head.safetensors", learn, units=16)
    assert head.inner_weight is not None
    assert 0.5 < head.metadata["held_out_auc"] < 1
    assert head.metadata["pair"].endswith("skip {1}")
    assert head.metadata["examples"] >= 3000
    graded = settings(
        checkpoint,
        prompts,
        max_labelled=3000,
        concurrency=12,
        head=str(tmp_path / "head.safetensors"),
    )
    collect(tmp_path / "log", graded)
    log = open_log(tmp_path / "log")
    assert log.runs[0].metadata["confidence_head"]["label"] == "overlap"
    assert log.drafts.select("confidence").collect().null_count().item() == 0
    metrics = evaluate(log, predictors=["confidence", "constant"]).metrics
    overall = metrics.filter(scope="overall")
    by_name = {row["predictor"]: row for row in overall.to_dicts()}
    assert by_name["confidence"]["lossless"]
    assert not by_name["confidence"]["fitted"]
    assert by_name["confidence"]["auc"] > 0.55
    assert by_name["confidence"]["log_loss"] < by_name["constant"]["log_loss"]


def test_bad_heads_are_named(tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]) -> None:
    for name in ("absent", "text"):
        path = tmp_path / f"{name}.safetensors"
        if name == "text":
            path.write_text("no tensors")
        with pytest.raises(InputError, match="is not a confidence head"):
            collect(tmp_path / "log", settings(checkpoint, prompts, head=str(path)))
    with pytest.raises(InputError, match="unknown label 'target'"):
        train_head(tmp_path / "x", settings(checkpoint, prompts), label="target")
    with pytest.raises(InputError, match="units must be >= 0"):
        train_head(tmp_path / "x", settings(checkpoint, prompts), units=-1)
    small = ConfidenceHead(
        torch.zeros(8),
        torch.zeros(3),
        {"pair": "", "label": "", "temperature": 1, "provenance": {}},
    )
    save_head(small, tmp_path / "small.safetensors")
    with pytest.raises(InputError, match="the head reads 8 numbers"):
        collect(
            tmp_path / "log",
            settings(checkpoint, prompts, head=str(tmp_path / "small.safetensors")),
        )


def test_logged_trees_hold_the_drafted_chain_and_the_targets_choices(
    tmp_path: Path, checkpoint: str, prompts: tuple[str, ...]
) -> None:
    """Greedy rows: the chain is rank 0, and it is accepted where the target's choice is too."""
    collect(tmp_path, settings(checkpoint, prompts, temperature=0.0, log_tree=4))
    log = open_log(tmp_path)
    assert [f.code for f in run_checks(log) if f.severity != "note"] == []
    drafts = log.drafts.sort("request", "step", "position").collect()
    trees = log.scan("trees").sort("request", "step", "node").collect()
    assert trees.height == 4 * drafts.height
    chain = trees.filter(rank=0)
    assert chain["request"].equals(drafts["request"])
    assert chain["node"].equals((4 * drafts["position"].cast(pl.Int32)).alias("node"))
    odds = drafts["logit_q_sampled"].cast(pl.Float64)
    log_q = chain["token_logprob"].cast(pl.Float64)
    assert (log_q + (1 + (-odds).exp()).log()).abs().max() < 1e-5  # type: ignore[operator]
    parents = trees.filter(pl.col("node") >= 4)
    assert parents["parent"].equals((parents["node"] // 4 * 4 - 4).alias("parent"))
    observed = drafts.filter(pl.col("accepted").is_not_null())
    assert (observed["accepted"] == (observed["target_rank_in_q"] == 0)).all()
    assert (observed["target_entropy"] == 0).all()
