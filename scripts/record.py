# SPDX-License-Identifier: Apache-2.0
"""The distribution record, `distribution.json`: what a wheel was built from. Also the version both wheels get."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from scripts.lockfile import Lock, Upstream
from scripts.stack import Stack

NAME = "vllm-gaudi-frontier"
_DIGITS = 8


def version(lock: Lock) -> str:
    """PEP 440 version of both wheels: vLLM's, and the start of the lock hash as a local part.

    A part of digits alone would be read as a number and lose its leading zeros, so the part grows to its first letter.
    """
    short = lock.hash[:_DIGITS]
    while short.isdigit() and len(short) < len(lock.hash):
        short = lock.hash[: len(short) + 1]
    return f"{lock.get('vllm').version}+frontier.{short}"


def build(lock: Lock, stacks: Mapping[str, Stack]) -> dict[str, Any]:
    """The record as plain values, the same for both wheels."""
    upstreams = [_upstream(lock.upstreams[name], stacks[name]) for name in lock.upstreams]
    return {"format": 1, "name": NAME, "version": version(lock), "lock_hash": lock.hash, "upstreams": upstreams}


def _upstream(upstream: Upstream, stack: Stack) -> dict[str, Any]:
    return {
        "name": upstream.name,
        "version": upstream.version,
        "source": upstream.address,
        "commit" if upstream.kind == "git" else "sha256": upstream.pin,
        "base_tree": upstream.base_tree,
        "patched_tree": upstream.patched_tree,
        "patches": [
            {
                "name": patch.name,
                "subject": patch.header.get("Subject"),
                "forwarded": patch.header.get("Forwarded"),
                "sha256": hashlib.sha256(patch.data).hexdigest(),
            }
            for patch in stack.patches
        ],
        "overlay_files": len(stack.overlay),
        "stack_sha256": stack.digest,
    }


def render(record: Mapping[str, Any]) -> bytes:
    """Bytes of distribution.json."""
    return (json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
