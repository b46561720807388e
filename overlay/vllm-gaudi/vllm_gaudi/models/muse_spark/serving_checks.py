# SPDX-License-Identifier: Apache-2.0
"""Server arguments under which Muse Spark cannot be served as published."""

import torch
from vllm.config import VllmConfig

from vllm_gaudi.quantization.quark_mxfp4 import NAME


def check_serving(vllm_config: VllmConfig) -> None:
    """Refuse what would change the model or is not supported. Raises ValueError naming the argument."""
    model, parallel, quant = vllm_config.model_config, vllm_config.parallel_config, vllm_config.quant_config
    if model.disable_sliding_window:
        raise ValueError("--disable-sliding-window: Muse Spark's sliding layers are trained with a window; remove it")
    model.hf_config.check()  # once more: --hf-overrides reach it after the config class has looked
    if model.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"--dtype {model.dtype}: Muse Spark runs in bfloat16 (or float32 for comparison)")
    if parallel.enable_expert_parallel:
        raise ValueError(
            "--enable-expert-parallel: Muse Spark's experts are placed by VLLM_MUSE_EXPERT_GROUPS; remove the flag"
        )
    if parallel.enable_eplb:
        raise ValueError("--enable-eplb: Muse Spark's experts are placed in runs; remove the flag")
    if parallel.pipeline_parallel_size > 1:
        raise ValueError("--pipeline-parallel-size: Muse Spark runs with tensor parallelism and expert groups only")
    if vllm_config.lora_config is not None:
        raise ValueError("--enable-lora: not supported for Muse Spark")
    if quant is not None and quant.get_name() != NAME:
        raise ValueError(f"quantization {quant.get_name()!r}: Muse Spark is served in BF16 or Quark MXFP4")
