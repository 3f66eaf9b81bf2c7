"""Look-up rules by hand, foreign tables, and tables from which no budget can come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from draftlab.errors import InputError
from draftlab.policies.cost import (
    HARDWARE,
    MODELS,
    USELESS,
    ZERO,
    CostTable,
    Curve,
    StepSizes,
    account,
    check_table,
    measured_curve,
    read_cost,
    roofline,
    table_from_steps,
)

if TYPE_CHECKING:
    from pathlib import Path

SIZES, MS = (8, 16, 32), (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("stairs", [1.0, 1.0, 2.0, 2.0, 4.0, 5.0]),
        ("linear", [1.0, 1.0, 1.125, 2.0, 3.0, 5.0]),
        ("clamped", [1.0, 1.0, 1.125, 2.0, 3.0, 4.0]),
        ("floor", [1.0, 1.0, 1.0, 2.0, 2.0, 4.0]),
    ],
)
def test_look_up_rules_by_hand(rule: Any, wanted: list[float]) -> None:
    assert Curve(SIZES, MS, rule).at([1, 8, 9, 16, 24, 40]).tolist() == wanted


def test_vllm_is_stairs_up_to_the_capture_limit_and_linear_above() -> None:
    curve = Curve(SIZES, MS, "stairs", capture_limit=16)
    assert curve.at([9, 16, 24, 32, 48]).tolist() == [2.0, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("sizes", "ms", "message"),
    [
        ((), (), "at least one"),
        ((1, 2), (1.0,), "as many times as sizes"),
        ((2, 1), (1.0, 2.0), "must rise"),
        ((1,), (float("nan"),), "finite"),
    ],
)
def test_unusable_curves_are_refused(sizes: Any, ms: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Curve(sizes, ms)
    with pytest.raises(InputError, match="known: stairs"):
        Curve((1,), (1.0,), "cubic")  # type: ignore[arg-type]


def test_a_step_adds_its_parts() -> None:
    table = CostTable(
        "t",
        "model",
        verify=Curve((1, 11), (10.0, 20.0)),
        draft=Curve((1,), (6.0,)),
        batch=Curve((0, 1), (0.0, 0.5)),
        fixed_ms=1.0,
        draft_passes=3,
    )
    assert table.step_ms(4, 6) == 1.0 + 2.0 + 15.0 + 6.0
    assert table.step_ms(4, 6, 1) == 1.0 + 2.0 + 15.0 + 2.0
    assert table.step_ms(4, 4, 0) == 1.0 + 2.0 + 13.0
    parallel = CostTable("t", "model", verify=Curve((1,), (10.0,)), draft=Curve((1,), (6.0,)))
    assert parallel.step_ms(1, 1, [0, 1, 3]).tolist() == [10.0, 16.0, 16.0]


def test_tables_survive_the_disk(tmp_path: Path) -> None:
    table = roofline(HARDWARE["H200"], MODELS["llama-70b"])
    assert read_cost(table.write(tmp_path / "cost.json")) == table


def test_sglang_floor_table() -> None:
    content = {
        "sample_batch_tokens": [1, 8],
        "sample_steps_per_sec": [100.0, 50.0],
        "max_batch_tokens": 64,
    }
    assert read_cost(content).step_ms(1, [1, 7, 8, 99]).tolist() == [10.0, 10.0, 20.0, 20.0]
    with pytest.raises(InputError, match="not profiled"):
        read_cost({"sample_batch_tokens": [1], "sample_steps_per_sec": [9.0]})


def test_sglang_additive_table() -> None:
    content = {
        "bias_seconds": 0.001,
        "bs_probes": [1, 3],
        "alpha_seconds": [0.002, 0.004],
        "m_probes": [1, 11],
        "theta_seconds": [0.010, 0.020],
    }
    # 1 + 3 + 15 at two requests and six tokens; clamped beyond the probes
    assert read_cost(content).step_ms(2, [6, 99]).tolist() == pytest.approx([19.0, 24.0])


def test_tensorrt_table_is_the_trimmable_part_only() -> None:
    content = {
        "token_counts": [1, 5],
        "step_time_ms": [1.0, 2.0],
        "fixed_overhead_ms": 7.0,
        "batch_sizes": [1, 2],
        "batch_overhead_ms": [0.5, 1.0],
        "_meta": {"encoding": "decomposed"},
    }
    assert read_cost(content).step_ms(2, 3) == 7.0 + 1.0 + 1.5
    whole = read_cost({"token_counts": [1, 5], "step_time_ms": [1.0, 2.0]})
    assert whole.step_ms(2, 3) == 1.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "wanted a key"),
        ({"format": "other"}, "reads 'draftlab-cost/1'"),
        ({"bias_seconds": 1}, "incomplete"),
    ],
)
def test_unknown_tables_are_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_cost(content)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    with pytest.raises(InputError, match="not a readable JSON"):
        read_cost(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(InputError, match="wanted a key"):
        read_cost(path)


def test_flat_and_inert_tables_are_called_so() -> None:
    flat = CostTable("flat", "model", verify=Curve((1, 1000), (5.0, 5.0)))
    assert "the cost table is flat" in str(check_table(flat, requests=8, num_speculative_tokens=5))
    # so cheap that even a chance of 0.05 pays
    cheap = CostTable("inert", "model", verify=Curve((1, 2), (1.0, 1.02)))
    assert "budget is 1" in str(check_table(cheap, requests=1, num_speculative_tokens=1))
    # so dear that nothing pays
    dear = CostTable("dear", "model", verify=Curve((1, 2), (1.0, 100.0)))
    assert "budget is 0" in str(check_table(dear, requests=1, num_speculative_tokens=3))
    useful = CostTable("useful", "model", verify=Curve((1, 2), (10.0, 13.0)))
    assert check_table(useful, requests=1, num_speculative_tokens=3) is None
    single = CostTable("single", "measured", verify=Curve((8,), (5.0,)))
    codes = [
        None if found is None else found.code
        for table in (flat, single, dear, useful)
        for found in [check_table(table, requests=1, num_speculative_tokens=3)]
    ]
    assert codes == ["flat_table", "one_size_table", "inert_table", None]
    assert set(codes) - {None} == set(USELESS)


def test_measured_curves_take_medians_and_never_fall() -> None:
    curve = measured_curve([8, 4, 4, 4, 16], [3.0, 1.0, 50.0, 2.0, 2.5])
    assert (curve.sizes, curve.ms) == ((4, 8, 16), (2.0, 3.0, 3.0))


def test_a_table_from_logged_steps() -> None:
    n = 9
    steps = StepSizes(
        requests=np.array([2] * 6 + [4] * 3),
        tokens=np.array([12] * 3 + [6] * 3 + [24] * 3),
        verify_ms=np.array([2.0] * 3 + [1.0] * 3 + [4.0] * 3),
        draft_ms=np.array([0.5] * (n - 1) + [np.nan]),
    )
    table = table_from_steps(steps, num_speculative_tokens=5)
    assert table.verify.at([6, 12, 18]).tolist() == [1.0, 2.0, 3.0]
    assert table.draft.sizes == (2,)
    assert "3 batch sizes" in table.note
    rare = StepSizes(steps.requests[:2], steps.tokens[:2], steps.verify_ms[:2], steps.draft_ms[:2])
    with pytest.raises(InputError, match="draftlab profile"):
        table_from_steps(rare, num_speculative_tokens=5)
    undrafted = StepSizes(steps.requests, steps.tokens, steps.verify_ms, np.full(n, np.nan))
    assert table_from_steps(undrafted, num_speculative_tokens=5).draft == ZERO


def test_roofline_is_memory_bound_first_and_labelled() -> None:
    table = roofline(HARDWARE["H100"], MODELS["llama-8b"])
    assert table.verify.at(1) == table.verify.at(64)
    assert table.verify.at(2048) == pytest.approx(2 * 8e9 * 2048 / (0.6 * 989e12) * 1e3)
    assert table.source == "model"
    assert "not a measurement" in table.note
    assert "flat" in str(check_table(table, requests=1, num_speculative_tokens=5))
    assert check_table(table, requests=256, num_speculative_tokens=5) is None


def test_break_even_counts_every_part() -> None:
    """Without propose the cycle would look 332 ms cheaper, without replay 1,075 ms."""
    parts = {"propose": 332.0, "verify": 964.4, "replay": 1063.1}
    found = account(parts, stated_total_ms=2039.9, saved_ms=1045.3)
    assert (found.inside, found.outside) == (("verify", "replay"), ("propose",))
    assert found.net_ms == pytest.approx(-1326.6)
    assert found.sentence == (
        "the stated total of 2039.9 ms contains verify + replay (2027.5 ms) and leaves out "
        "propose: net -1326.6 ms"
    )
    with pytest.raises(InputError, match="16 parts"):
        account({str(i): 1.0 for i in range(17)}, stated_total_ms=1.0, saved_ms=0.0)
