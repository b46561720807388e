# SPDX-License-Identifier: Apache-2.0
"""Patterns of a quantisation config that speak of a module under its name in the checkpoint.

`self_attn.gate_proj` is built as `self_attn.output_gate_proj`. vLLM carries plain names of a compressed-tensors
config over, but not regular expressions, which may then miss the module.
"""

import re
from typing import Any

IN_CHECKPOINT, BUILT = ".self_attn.gate_proj", ".self_attn.output_gate_proj"


def _reaches(entry: str, module: str) -> bool:
    return entry.startswith("re:") and re.match(entry.removeprefix("re:"), module) is not None


def follow_rename(quant_config: Any, layers: int) -> None:
    """Name the attention gate of each of `layers` layers where a pattern means it, in place.

    Does nothing without a compressed-tensors config. Idempotent.
    """
    if quant_config is None or quant_config.get_name() != "compressed-tensors":
        return
    for layer in range(layers):
        module = f"model.layers.{layer}{IN_CHECKPOINT}"
        built = f"model.layers.{layer}{BUILT}"
        if built not in quant_config.ignore and any(_reaches(entry, module) for entry in quant_config.ignore):
            quant_config.ignore.append(built)
        schemes = quant_config.target_scheme_map
        for entry, scheme in list(schemes.items()):
            if _reaches(entry, module):
                schemes.setdefault(built, scheme)
