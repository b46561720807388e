# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face cache with the configuration of the one model most of upstream's unit tests name.

They build engine parts from `facebook/opt-125m` and never load its weights; its sizes are the defaults of transformers'
`OPTConfig`. The tokenizer is this package's. Nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path

from gates.hpusim import tokenizer

MODEL = "facebook/opt-125m"
_REVISION = "0" * 40  # a snapshot is named after a commit


def make(folder: Path) -> Path:
    """Write the cache below `folder` and return it, the value of HF_HUB_CACHE."""
    from transformers import OPTConfig

    repository = folder / f"models--{MODEL.replace('/', '--')}"
    snapshot = repository / "snapshots" / _REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    tokenizer.save(snapshot)
    OPTConfig(architectures=["OPTForCausalLM"], dtype="float16").save_pretrained(snapshot)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(_REVISION)
    return folder
