"""The profile covers every size, and makes a cost table that a budget can be searched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab.engine.collect import CollectSettings
from draftlab.engine.profile import profile
from draftlab.errors import InputError
from draftlab.policies.cost import StepSizes, read_cost, table_from_steps
from tests.engine.test_collect import make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> CollectSettings:
    return CollectSettings(
        target=make_checkpoint(tmp_path_factory.mktemp("target")),
        skip_layers=(1,),
        dtype="float32",
        num_speculative_tokens=2,
    )


def test_every_size_is_measured(settings: CollectSettings, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = profile(
        settings,
        concurrencies=(1, 3),
        repetitions=4,
        context_tokens=8,
        on_step=lambda done, total: seen.append((done, total)),
    )
    sizes = [1, 2, 3, 3, 6, 9]
    assert sorted(found["tokens"].tolist()) == sorted(np.repeat(sizes, 4).tolist())
    assert set(zip(found["requests"].tolist(), found["tokens"].tolist(), strict=True)) == {
        (1, 1), (1, 2), (1, 3), (3, 3), (3, 6), (3, 9),
    }  # fmt: skip
    assert (found["verify_ms"] > 0).all()
    assert (found["draft_ms"] > 0).all()
    assert seen[-1] == (28, 28)
    table = table_from_steps(StepSizes(**found), num_speculative_tokens=2, name="here")
    assert table.verify.sizes == (1, 2, 3, 6, 9)
    assert table.draft.sizes == (1, 3)
    assert table.draft_passes == 2
    assert read_cost(table.write(tmp_path / "cost.json")) == table


@pytest.mark.parametrize(
    "options", [{"concurrencies": ()}, {"concurrencies": (0,)}, {"repetitions": 0}]
)
def test_unusable_sizes_are_refused(settings: CollectSettings, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        profile(settings, **options)
