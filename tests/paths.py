"""Where things lie in the repository, said once: test files move."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "data" / "sample"
SAMPLE_T1 = ROOT / "data" / "sample-t1"
GOLDEN = ROOT / "tests" / "data" / "golden"
