"""Serving prompts with an offline engine, on a stand-in for it."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from draftlab.engine.prompts import Prompt
from draftlab.errors import InputError
from draftlab.hooks import offline
from draftlab.hooks.doctor import Installation
from draftlab.hooks.offline import VllmSettings, collect_vllm
from tests.logs import proposal, write_log

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = VllmSettings(target="T", drafter="D", method="draft_model", concurrency=2)
PROMPTS = [
    Prompt("p", "chat", ("one", "two")),
    Prompt("q", "code", ("x",)),
    Prompt("r", "code", ("y",)),
]


class FakeEngine:
    """Answers each request in two steps of two tokens."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int], Any]] = []
        self.running: dict[str, int] = {}
        self.most = 0
        self.aborted: list[str] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.asked.append((name, prompt["prompt_token_ids"], params))
        self.running[name] = 0
        self.most = max(self.most, len(self.running))

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def abort_request(self, names: list[str]) -> None:
        self.aborted = names

    def step(self) -> list[Any]:
        outputs = []
        for name in list(self.running):
            self.running[name] += 2
            done = self.running[name] == 4
            if done:
                del self.running[name]
            answer = SimpleNamespace(token_ids=[0] * (4 if done else 2), text="answer")
            outputs.append(SimpleNamespace(request_id=name, outputs=[answer], finished=done))
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """Put a vLLM into sys.modules whose engine logs one run."""
    made = FakeEngine()
    tokenizer = SimpleNamespace(encode=lambda text: [len(word) for word in text.split()])

    def make(target: str, **options: Any) -> Any:
        from pathlib import Path

        made.options = options  # type: ignore[attr-defined]
        write_log(Path(os.environ["DRAFTLAB_LOG"]), [proposal(0, [True, False])])
        return SimpleNamespace(llm_engine=made, get_tokenizer=lambda: tokenizer)

    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = make, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    found = Installation("1", on_cpu=False, has_triton=True)
    monkeypatch.setattr(offline, "find_installation", lambda: found)
    monkeypatch.delenv("DRAFTLAB_LOG", raising=False)
    return made


def test_ids_carry_workload_and_group_and_later_turns_their_history(
    engine: FakeEngine, tmp_path: Path
) -> None:
    run = collect_vllm(tmp_path, SETTINGS, PROMPTS)
    assert run.parent == tmp_path
    names = [name for name, _, _ in engine.asked]
    assert sorted(names) == ["chat/0/0", "chat/0/1", "code/1/0", "code/2/0"]
    assert engine.most == 2, "as many at once as asked"
    tokens = {name: prompt for name, prompt, _ in engine.asked}
    assert tokens["chat/0/1"] == [3, 6, 3]  # one, answer, two
    assert "DRAFTLAB_LOG" not in os.environ
    options = engine.options  # type: ignore[attr-defined]
    assert options["speculative_config"]["draft_sample_method"] == "probabilistic"
    assert options["max_num_seqs"] == 2


def test_every_request_has_its_own_seed(engine: FakeEngine, tmp_path: Path) -> None:
    collect_vllm(tmp_path, SETTINGS, PROMPTS)
    assert len({params.seed for _, _, params in engine.asked}) == 4


def test_it_stops_after_enough_tokens(engine: FakeEngine, tmp_path: Path) -> None:
    from dataclasses import replace

    collect_vllm(tmp_path, replace(SETTINGS, max_labelled=4), PROMPTS)
    assert engine.aborted == ["chat/0/0", "code/1/0"]


def test_progress_counts_each_token_once(engine: FakeEngine, tmp_path: Path) -> None:
    seen = []
    collect_vllm(tmp_path, SETTINGS, PROMPTS, on_step=lambda p: seen.append(p.emitted))
    assert seen[-1] == 16
    assert seen == sorted(seen)


def test_garbage_labels_are_refused(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    cpu = Installation("0.33.0", on_cpu=True, has_triton=False)
    monkeypatch.setattr(offline, "find_installation", lambda: cpu)
    with pytest.raises(InputError, match="samples wrongly on a CPU"):
        collect_vllm(tmp_path, SETTINGS, PROMPTS)
    assert engine.asked == []


def test_a_run_that_never_comes_is_an_error(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "_SECONDS_TO_CLOSE", 0.2)
    with pytest.raises(InputError, match="logged nothing"):
        offline._wait_for_run(tmp_path, set())
