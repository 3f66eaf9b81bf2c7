"""Time the hook's Triton kernel against a device copy of the same bytes, where CUDA is at hand.

The kernel reads the draft logits once; a copy reads and writes them. Goal: at most 1.3 times the
copy. Run: python benchmarks/hook_kernel.py [--vocab 129280] [--batch 64] [--positions 7]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftlab.hooks import kernel
from draftlab.hooks.draft_columns import FEATURES, reference

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL = 1.3
AGREEMENT = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=129_280)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--positions", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    line: dict[str, Any] = {"benchmark": "hook_kernel", "device": None}
    if not torch.cuda.is_available():
        line["remark"] = "no CUDA device at hand: nothing was timed"
    elif not kernel.AVAILABLE:
        line["remark"] = "Triton is not installed: nothing was timed"
    else:
        line["device"] = torch.cuda.get_device_name()
        shape = (arguments.batch, arguments.positions, arguments.vocab)
        line["shape"] = shape
        for dtype in (torch.bfloat16, torch.float32):
            name = str(dtype).removeprefix("torch.")
            line[name] = compare(shape, dtype, arguments.repeats)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(line) + "\n")
    print(json.dumps(line))


def compare(shape: tuple[int, int, int], dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    """Return microseconds of kernel and copy, their ratio, and the largest disagreement."""
    batch, positions, vocab = shape
    logits = (3 * torch.randn(shape, device="cuda")).to(dtype)
    slots = torch.randperm(batch, device="cuda")
    temperature = torch.ones(batch, device="cuda")
    tokens = torch.randint(0, vocab, (batch, positions), device="cuda")
    out = torch.empty(batch, positions, len(FEATURES), device="cuda")
    wanted, target = torch.empty_like(out), torch.empty_like(logits)
    arguments = (logits, slots, temperature, tokens)
    kernel_us = time_us(lambda: kernel.launch(*arguments, out), repeats)
    copy_us = time_us(lambda: target.copy_(logits), repeats)
    reference(*arguments, wanted)
    error = float((out - wanted).abs().max())
    assert error < AGREEMENT, f"kernel and torch differ by {error}"
    return {
        "kernel_us": round(kernel_us, 1),
        "copy_us": round(copy_us, 1),
        "ratio": round(kernel_us / copy_us, 3),
        "goal": GOAL,
        "gigabytes": logits.nbytes / 1e9,
        "largest_difference": error,
    }


def time_us(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call on the device, with a cold cache, in microseconds."""
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    call()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return float(statistics.median(times))


if __name__ == "__main__":
    main()
