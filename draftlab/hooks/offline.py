"""Collect a draft log with an offline vLLM engine over prompts, the hook on."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from draftlab.errors import InputError
from draftlab.hooks.doctor import find_installation, vllm_doctor
from draftlab.log.collection import CollectionSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SECONDS_TO_CLOSE = 60.0


class Conversation(Protocol):
    """A prompt: the user's turns, asked one after the other."""

    @property
    def id(self) -> str:
        """Name of the prompt."""

    @property
    def dataset(self) -> str:
        """Workload."""

    @property
    def turns(self) -> tuple[str, ...]:
        """What the user says."""


@dataclass(frozen=True, kw_only=True)
class VllmSettings(CollectionSettings):
    """What to run with vLLM; ``max_labelled`` is judged by the tokens emitted."""

    method: str | None = None
    """vLLM's speculative method; found by vLLM from the drafter if not given."""
    target_side: bool = False
    """Log columns of the target too."""
    adaptive_verification: bool = False
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``vllm.LLM``."""
    speculative_options: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of vLLM's speculative config."""

    def speculative_config(self) -> dict[str, Any]:
        """Return vLLM's speculative config."""
        config: dict[str, Any] = {
            "num_speculative_tokens": self.num_speculative_tokens,
            "draft_sample_method": self.draft_sample_method,
        }
        if self.drafter is not None:
            config["model"] = self.drafter
        if self.method is not None:
            config["method"] = self.method
        if self.adaptive_verification:
            config["enable_adaptive_verification"] = True
        return config | dict(self.speculative_options)

    def environment(self, log: Path) -> dict[str, str]:
        """Return the hook's variables."""
        return {
            "DRAFTLAB_LOG": str(log.absolute()),
            "DRAFTLAB_TOKENS": str(int(self.tokens)),
            "DRAFTLAB_RAW_IDS": str(int(self.raw_ids)),
            "DRAFTLAB_TARGET": str(int(self.target_side)),
        }


@dataclass
class VllmProgress:
    """How far a collection is."""

    emitted: int = 0
    finished: int = 0


def collect_vllm(
    out: str | Path,
    settings: VllmSettings,
    prompts: Sequence[Conversation],
    *,
    on_step: Callable[[VllmProgress], None] = lambda _: None,
) -> Path:
    """Serve prompts with an offline vLLM engine and log its drafts as a new run in ``out``.

    Parameters
    ----------
    out : path
        Folder of the log.
    settings : VllmSettings
    prompts : sequence of Conversation
        Each is asked once, its later turns with the answers before them.
    on_step
        Called after every engine step.

    Returns
    -------
    Path
        Folder of the run.

    Raises
    ------
    InputError
        A setting is out of its range, or the hook could log nothing that is worth having: vLLM is
        missing or unknown, it would run Model Runner V1, or the speculator has no draft
        distribution.
    """
    settings.check()
    out = Path(out)
    environment = settings.environment(out)
    diagnosis = vllm_doctor(
        settings.speculative_config(),
        environment=os.environ | environment,
        installation=find_installation(),
    )
    if diagnosis.problems:
        raise InputError(f"vLLM {diagnosis.vllm}: {'; '.join(diagnosis.problems)}")
    before = _runs(out)
    with _environment(environment):
        vllm: Any = importlib.import_module("vllm")
        llm = vllm.LLM(
            settings.target,
            speculative_config=settings.speculative_config(),
            max_num_seqs=settings.concurrency,
            seed=settings.seed,
            dtype=settings.dtype,
            **settings.engine_options,
        )
        try:
            _Server(llm, settings, prompts).run(on_step)
        finally:
            llm.llm_engine.engine_core.shutdown()
    return _wait_for_run(out, before)


class _Server:
    """Feeds conversations to the engine, as many at once as it takes."""

    def __init__(self, llm: Any, settings: VllmSettings, prompts: Sequence[Conversation]) -> None:
        self._engine = llm.llm_engine
        self._tokenizer = llm.get_tokenizer()
        self._settings = settings
        self._waiting = deque(enumerate(prompts))
        self._open: dict[str, tuple[int, Conversation, list[dict[str, str]]]] = {}
        self._counted: dict[str, int] = {}
        self._progress = VllmProgress()

    def run(self, on_step: Callable[[VllmProgress], None]) -> None:
        """Serve until every conversation has ended or enough tokens were emitted."""
        self._fill()
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                self._take(output)
            self._fill()
            on_step(self._progress)
            wanted = self._settings.max_labelled
            if wanted is not None and self._progress.emitted >= wanted:
                self._engine.abort_request(list(self._open))
                return

    def _fill(self) -> None:
        while self._waiting and len(self._open) < self._settings.concurrency:
            number, prompt = self._waiting.popleft()
            self._ask(number, prompt, [{"role": "user", "content": prompt.turns[0]}])

    def _ask(self, number: int, prompt: Conversation, messages: list[dict[str, str]]) -> None:
        turn = len(messages) // 2
        # The workload and the group of folds travel in the id; all turns are one group.
        name = f"{prompt.dataset}/{number}/{turn}"
        self._open[name] = (number, prompt, messages)
        tokens = {"prompt_token_ids": self._encode(messages)}
        self._engine.add_request(name, tokens, self._params(number, turn))

    def _params(self, number: int, turn: int) -> Any:
        vllm: Any = importlib.import_module("vllm")
        s = self._settings
        return vllm.SamplingParams(
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            max_tokens=s.max_new_tokens,
            seed=s.seed + 1000 * number + turn,
        )

    def _encode(self, messages: list[dict[str, str]]) -> list[int]:
        if getattr(self._tokenizer, "chat_template", None) is None:
            text = "\n\n".join(message["content"] for message in messages)
            return list(self._tokenizer.encode(text))
        return list(
            self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False
            )
        )

    def _take(self, output: Any) -> None:
        name, answer = output.request_id, output.outputs[0]
        emitted = len(answer.token_ids)
        self._progress.emitted += emitted - self._counted.get(name, 0)
        self._counted[name] = emitted
        if not output.finished:
            return
        self._progress.finished += 1
        del self._counted[name]
        number, prompt, messages = self._open.pop(name)
        asked = len(messages) // 2 + 1
        if asked < len(prompt.turns):
            more = [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": prompt.turns[asked]},
            ]
            self._ask(number, prompt, [*messages, *more])


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while; vLLM's processes inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _runs(out: Path) -> set[Path]:
    return {path.parent for path in out.glob("*/run.json")}


def _wait_for_run(out: Path, before: set[Path]) -> Path:
    """Return the new run once its worker has closed it; a run that it left open is still one."""
    deadline = time.monotonic() + _SECONDS_TO_CLOSE
    while True:
        new = sorted(_runs(out) - before)
        closed = [path for path in new if _is_closed(path)]
        if closed or (new and time.monotonic() > deadline):
            return (closed or new)[0]
        if time.monotonic() > deadline:
            raise InputError(f"{out}: vLLM ran, but the hook logged nothing; its log says why")
        time.sleep(0.1)


def _is_closed(run: Path) -> bool:
    return bool(json.loads((run / "run.json").read_text(encoding="utf-8")).get("closed"))
