"""What both engines are told: one set of settings, checked in one place."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from draftlab.engine.collect import CollectSettings
from draftlab.errors import InputError
from draftlab.hooks.offline import VllmSettings
from draftlab.log.collection import CollectionSettings


@pytest.mark.parametrize("kind", [CollectSettings, VllmSettings])
@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", -0.1, 0.0),
        ("top_p", 0.0, 1.0),
        ("top_k", -1, 0),
        ("min_p", 1.0, 0.0),
        ("num_speculative_tokens", 0, 1),
        ("concurrency", 0, 1),
        ("max_new_tokens", 0, 1),
        ("max_labelled", 0, None),
        ("seed", -1, 0),
        ("draft_sample_method", "beam", "greedy"),
    ],
)
def test_both_engines_refuse_what_is_out_of_range(
    kind: type[CollectionSettings], name: str, bad: Any, good: Any
) -> None:
    with pytest.raises(InputError, match=f"{name} must be .*, got "):
        kind(**{"target": "T", name: bad}).check()
    kind(**{"target": "T", name: good}).check()


def test_shared_settings_have_one_default() -> None:
    shared = {field.name for field in fields(CollectionSettings)} - {"target"}
    reference, served = asdict(CollectSettings()), asdict(VllmSettings(target="T"))
    assert all(reference[name] == served[name] for name in shared)
