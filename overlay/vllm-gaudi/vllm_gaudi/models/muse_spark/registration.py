# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM know Muse Spark's config classes."""


def register() -> None:
    """Register the config classes; Meta's native layout is refused by its own. Idempotent."""
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    from vllm_gaudi.models.muse_spark.config import MetaNativeConfig, MuseSparkConfig, MuseSparkTextConfig

    for config in (MuseSparkConfig, MuseSparkTextConfig, MetaNativeConfig):
        _CONFIG_REGISTRY[config.model_type] = config
