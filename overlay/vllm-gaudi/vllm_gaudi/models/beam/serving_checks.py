# SPDX-License-Identifier: Apache-2.0
"""Server arguments under which Beam cannot be served as published."""

import torch
from vllm.config import VllmConfig

from vllm_gaudi.models.beam.quant_section import METHOD, check_section


def check_serving(vllm_config: VllmConfig) -> None:
    """Refuse what would change the model or is not supported. Raises ValueError naming the argument."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if model.disable_sliding_window:
        raise ValueError("--disable-sliding-window: Beam's sliding layers are trained with a window; remove the flag")
    model.hf_config.check()  # once more: --hf-overrides reach it after the config class has looked
    if model.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"--dtype {model.dtype}: Beam runs in bfloat16 (or float32 for comparison)")
    cache = vllm_config.cache_config.cache_dtype
    if cache not in ("auto", "bfloat16", "float32"):
        raise ValueError(f"--kv-cache-dtype {cache}: Beam's KV cache is BF16, it has no scales; remove the flag")
    if parallel.enable_eplb:
        raise ValueError("--enable-eplb: Beam's experts are placed linearly; remove the flag")
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("--pipeline-parallel-size: Beam runs with tensor and expert parallelism only")
    if parallel.use_sequence_parallel_moe:
        raise ValueError("--data-parallel-size with expert parallelism: not supported for Beam")
    experts = model.hf_config.num_experts
    if parallel.enable_expert_parallel and experts % parallel.tensor_parallel_size:
        raise ValueError(f"expert parallel size {parallel.tensor_parallel_size} does not divide num_experts {experts}")
    _check_scheme(vllm_config.quant_config)


def _check_scheme(quant_config) -> None:
    if quant_config is None:
        return
    if quant_config.get_name() != METHOD:
        raise ValueError(f"quantization {quant_config.get_name()!r}: Beam is served in BF16 or {METHOD} FP8")
    check_section(quant_config.config)  # which may come from another place than the config
