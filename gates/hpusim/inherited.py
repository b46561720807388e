# SPDX-License-Identifier: Apache-2.0
"""What an engine process takes over from the caller's environment: nothing that would make it another engine.

Left-overs of a shell (an API key, a bucket setting, a torchrun's rank, a network interface for gloo, an HTTP proxy)
would otherwise decide a test or break the demo. What a run needs, it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_PREFIXES = ("VLLM_", "PT_HPU_", "HABANA_", "GLOO_", "TORCHELASTIC_")
_NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",  # 0 would leave the emulation out
)  # fmt: skip
# They change where things are written or looked up, not what is served.
_KEPT = ("VLLM_LOGGING_", "VLLM_CONFIGURE_LOGGING", "VLLM_CACHE_ROOT", "VLLM_NO_USAGE_STATS")


def left_out(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Names of `environment` that an engine process does not get."""
    return sorted(
        name for name in environment if name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_KEPT))
    )


def inherited(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` without what `left_out` lists; loopback addresses are never asked of a proxy."""
    dropped = set(left_out(environment))
    kept = {name: value for name, value in environment.items() if name not in dropped}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(part for part in (kept.get(name, ""), "127.0.0.1", "localhost") if part)
    return kept
