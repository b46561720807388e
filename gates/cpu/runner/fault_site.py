# SPDX-License-Identifier: Apache-2.0
"""Take one fix out of every process of a server: a folder for PYTHONPATH whose sitecustomize undoes it at import."""

from __future__ import annotations

from pathlib import Path

# Module and function of a fix, and what upstream does instead.
FAULTS = {
    "async-inputs": ("vllm_gaudi.runtime.async_inputs", "seed_input_ids", "lambda *a: None"),
    "async-history": ("vllm_gaudi.runtime.output_history", "fill", "lambda *a: None"),
    "logit-rows": ("vllm_gaudi.runtime.logit_rows", "prefill_tokens", "lambda request, known: known"),
    "one-logit": ("vllm_gaudi.runtime.logit_rows", "one_logit", "lambda count: count"),
}
_SITE = """
import importlib.abc, importlib.util, sys

FAULTS = {faults!r}


class _Undo(importlib.abc.MetaPathFinder):

    def find_spec(self, name, path, target=None):
        if name not in {{module for module, _, _ in FAULTS}}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            for owner, function, upstream in FAULTS:
                if owner == name:
                    setattr(module, function, eval(upstream))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Undo())
"""


def write(folder: Path, *names: str) -> Path:
    """Fill `folder` so that a process with it on PYTHONPATH runs without the named fixes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE.format(faults=[FAULTS[name] for name in names]))
    return folder
