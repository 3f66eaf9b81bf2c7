"""Let vLLM's Model Runner V2 run on a CPU under Triton's interpreter, in every process.

Python imports this file at its start where this folder is on PYTHONPATH. Each patch waits for
its module to be imported; nothing of vLLM's files is changed.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from types import SimpleNamespace


def _backends(module):
    """VLLM takes Triton as missing unless some backend says that it is active."""
    driver = SimpleNamespace(is_active=lambda: True)
    module.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)


def _interpreter(module):
    """The interpreter's loads and stores want their masks as numpy bool."""
    import numpy as np

    builder = module.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def as_bool(mask):
        mask.data = mask.data.astype(np.bool_)
        return mask

    def masked_load(self, ptrs, mask, *args):
        return load(self, ptrs, as_bool(mask), *args)

    def masked_store(self, ptrs, value, mask, *args):
        return store(self, ptrs, value, as_bool(mask), *args)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _rejection_sampler(module):
    """The interpreter has no device library: log1p is made of log."""
    import interpreted

    module.tldevice = interpreted


def _top_k_top_p(module):
    """Its kernel fails in the interpreter; torch does it then."""
    module.HAS_TRITON = False


PATCHES = {
    "triton.backends": _backends,
    "triton.runtime.interpreter": _interpreter,
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils": _rejection_sampler,
    "vllm.v1.sample.ops.topk_topp_sampler": _top_k_top_p,
}


class _PatchAfterImport:
    """Finds modules as usual and runs their patch once they are executed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        patch = PATCHES.get(name)
        spec = PathFinder.find_spec(name, path, target) if patch else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("TRITON_INTERPRET") == "1":
    sys.meta_path.insert(0, _PatchAfterImport)
