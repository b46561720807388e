# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM know `beam`: the config class and the model class."""


def register() -> None:
    """Register BeamConfig and BeamForCausalLM. Idempotent; imports no model code."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    from vllm_gaudi.models.beam.config import BeamConfig

    _CONFIG_REGISTRY["beam"] = BeamConfig
    ModelRegistry.register_model("BeamForCausalLM", "vllm_gaudi.models.beam.model:BeamForCausalLM")
