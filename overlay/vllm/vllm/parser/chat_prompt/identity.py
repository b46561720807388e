# SPDX-License-Identifier: Apache-2.0
"""Which chat template a server renders with: its hash, in the log and in /v1/models.

A template may change after a model's release, weights and configuration staying equal. The hash
tells two servers, or a server and a recorded prompt, apart.
"""

from __future__ import annotations

import hashlib
from typing import Any

from vllm.logger import init_logger

logger = init_logger(__name__)

_HASHES: dict[str, str] = {}


def template_hash(template: str) -> str:
    """SHA-256 of a template's text, in hex."""
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()


def note_template(model_config: Any, tokenizer: Any, template: str | None) -> None:
    """Log the hash of the served template and keep it for `model_card_fields`.

    Args:
        template: the template given on the command line; the tokenizer's own otherwise.
    """
    own = template or getattr(tokenizer, "chat_template", None)
    if isinstance(own, dict):
        own = own.get("default")
    if not isinstance(own, str):
        return
    digest = template_hash(own)
    if _HASHES.get(model_config.model) != digest:
        logger.info("Chat template sha256 %s (%d characters) of %s.", digest, len(own), model_config.model)
    _HASHES[model_config.model] = digest


def model_card_fields(model_config: Any) -> dict[str, str]:
    """Extra fields of a model's card in /v1/models."""
    digest = _HASHES.get(model_config.model)
    return {} if digest is None else {"chat_template_sha256": digest}
