# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM know Muse Spark: the config classes and the model class."""

ARCHITECTURE = "MuseSparkForConditionalGeneration"


def register() -> None:
    """Register config and model; Meta's native layout is refused by its config. Idempotent; imports no model code."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    from vllm_gaudi.models.muse_spark.config import MetaNativeConfig, MuseSparkConfig, MuseSparkTextConfig

    for config in (MuseSparkConfig, MuseSparkTextConfig, MetaNativeConfig):
        _CONFIG_REGISTRY[config.model_type] = config
    ModelRegistry.register_model(ARCHITECTURE, f"vllm_gaudi.models.muse_spark.model:{ARCHITECTURE}")
