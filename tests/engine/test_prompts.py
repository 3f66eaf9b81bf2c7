"""Prompt files in every form that users have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from draftlab.engine.prompts import SUITES, load_prompts, load_suites
from draftlab.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_suites_are_interleaved_round_robin() -> None:
    prompts = load_suites()
    assert len(prompts) >= 200
    assert [p.dataset for p in prompts[:10]] == [*SUITES, *SUITES]
    assert len({p.id for p in prompts}) == len(prompts)


def test_json_lines_with_id_and_prompt(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"id": "gsm8k/0", "prompt": "How many?"}\n\n{"id": 7, "prompt": "Why?"}\n')
    prompts = load_prompts([path])
    assert [(p.id, p.dataset, p.turns) for p in prompts] == [
        ("gsm8k/0", "gsm8k", ("How many?",)),
        ("7", "gsm8k", ("Why?",)),
    ]


def test_questions_with_turns(tmp_path: Path) -> None:
    path = tmp_path / "mt_bench.jsonl"
    path.write_text('{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}\n')
    [prompt] = load_prompts([path])
    assert prompt.turns == ("Write.", "Again.")


def test_plain_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("First question?\n\n  Second question?\n")
    assert [p.turns for p in load_prompts([path])] == [("First question?",), ("Second question?",)]
    assert [p.id for p in load_prompts([path])] == ["mine/1", "mine/3"]


def test_several_files_are_workloads_of_their_own(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 1)):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(count)))
    prompts = load_prompts([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [p.dataset for p in prompts] == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompt"),
        ('{"id": 1, "prompt"', "line 1: is not JSON"),
        ('{"id": 1, "text": "x"}', "line 1: wanted"),
        ('{"prompt": "x"}', "line 1: wanted"),
        ('{"id": 1, "prompt": "x"}\n{"id": 2, "turns": []}', "line 2: wanted"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_prompts([path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent.jsonl: cannot be read"):
        load_prompts([tmp_path / "absent.jsonl"])
