# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM know the load format."""

FORMATS = ("beam", "frontier")


def register() -> None:
    """Register the load format under its names. Idempotent; imports no model code."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER, register_model_loader

    from vllm_gaudi.loader import state_hash
    from vllm_gaudi.loader.model_loader import FrontierModelLoader

    state_hash.install()
    for name in FORMATS:
        if _LOAD_FORMAT_TO_MODEL_LOADER.get(name) is not FrontierModelLoader:
            register_model_loader(name)(FrontierModelLoader)
