"""Where the hook's float columns lie: every configuration, against a list made column by column."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from draftlab.hooks.draft_columns import FEATURES, draft_features
from draftlab.hooks.plan import FLOATS, Facts, place_floats, plan_columns


@pytest.mark.parametrize("speculator", ["EagleSpeculator", "DSparkSpeculator", "XPressSpeculator"])
def test_floats_lie_side_by_side_and_are_those_that_the_plan_records(speculator: str) -> None:
    both = (False, True)
    for drafting, adaptive, head, shadow, target in product(
        ("greedy", "probabilistic"), both, both, both, both
    ):
        facts = Facts(
            speculator, drafting, adaptive, confidence_head=head, shadow=shadow, target=target
        )
        places = place_floats(facts)
        laid = [name for group in places for name in FLOATS[group]]
        columns = [i for place in places.values() for i in range(place.start, place.stop)]
        assert columns == list(range(len(laid)))
        recorded = {n for n, said in plan_columns(facts).items() if said == "recorded"} - {"token"}
        assert set(laid) == recorded


def test_features_are_written_into_a_slice_of_a_wider_row() -> None:
    torch.manual_seed(0)
    logits, slots = torch.randn(3, 2, 9), torch.tensor([2, 0])
    tokens = torch.tensor([[1, 4], [8, 0]])
    alone, wide = torch.empty(2, 2, len(FEATURES)), torch.full((2, 2, 8), 7.0)
    for out in (alone, wide[..., 3 : 3 + len(FEATURES)]):
        draft_features(logits, slots, torch.ones(3), tokens, out)
    torch.testing.assert_close(wide[..., 3:7], alone, rtol=0, atol=0)
    assert (wide[..., :3] == 7).all()
    assert (wide[..., 7] == 7).all()
