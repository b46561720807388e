# SPDX-License-Identifier: Apache-2.0
"""Build and load a model as one rank of a group, in one process: ranks only differ in what they keep.

Muse Spark has no flag for expert parallelism; there it stands for two expert groups.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from harness import BLOCK, _distributed, plugins, settings
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment, parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.fused_moe import expert_map_manager
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.utils import initialize_model

from gates.checkpoints.beam_shapes import PUBLISHED

# Eight ranks can split it: 8 heads over 2 KV heads (replicated from TP 4 on), 56 rows of the vocabulary a rank
# (padded to 64), an expert 8 columns wide at TP 8, and two experts a rank.
SHAPE = {
    **PUBLISHED, "vocab_size": 442, "hidden_size": 40, "intermediate_size": 88, "num_hidden_layers": 5,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "sliding_window": 8, "moe_intermediate_size": 24, "num_experts": 16, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 2,
}  # fmt: skip


@contextmanager
def as_rank(rank: int, size: int):
    """The tensor-parallel group of this process claims to be rank `rank` of `size`."""
    groups = [parallel_state._TP, getattr(parallel_state, "_EP", None)]
    saved = [(group, group.rank_in_group, group.world_size) for group in groups if group is not None]
    try:
        for group, *_ in saved:
            group.rank_in_group, group.world_size = rank, size
        yield
    finally:
        for group, old_rank, old_size in saved:
            group.rank_in_group, group.world_size = old_rank, old_size


def _config(folder: Path, load_format: str, tp: int, expert_parallel: bool, **extra: int):
    plugins()
    arguments = EngineArgs(
        model=str(folder),
        dtype="bfloat16",
        max_model_len=256,
        enforce_eager=True,
        block_size=BLOCK,
        skip_tokenizer_init=True,
        load_format=load_format,
        model_loader_extra_config=extra,
    )
    config = arguments.create_engine_config()
    config.parallel_config.tensor_parallel_size = tp
    muse = config.model_config.hf_config.model_type == "muse_spark"
    config.parallel_config.enable_expert_parallel = expert_parallel and not muse
    return config


def _groups(tp: int, expert_parallel: bool):
    return settings(VLLM_MUSE_EXPERT_GROUPS=str(min(tp, 2) if expert_parallel else 1))


@contextmanager
def _prepared(folder: Path, load_format: str, tp: int, rank: int, expert_parallel: bool, **extra: int):
    config = _config(folder, load_format, tp, expert_parallel, **extra)
    with ExitStack() as stack:
        stack.enter_context(_groups(tp, expert_parallel))
        stack.enter_context(set_current_vllm_config(config))
        _distributed()
        stack.enter_context(as_rank(rank, tp))
        # A refused load leaves the model's dtype as torch's default.
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        yield config


@contextmanager
def as_world(folder: Path, load_format: str, tp: int, rank: int, address: str, expert_parallel: bool, **extra: int):
    """This process as rank `rank` of `tp` real ones that meet at `address`; gives the engine's config."""
    config = _config(folder, load_format, tp, expert_parallel, **extra)
    with _groups(tp, expert_parallel), set_current_vllm_config(config):
        init_distributed_environment(tp, rank, address, rank, backend="hccl")
        ensure_model_parallel_initialized(tp, 1)
        yield config


def load(folder: Path, load_format: str, tp: int = 1, rank: int = 0, expert_parallel: bool = False, **extra: int):
    """The loaded model of rank `rank` of `tp`; `extra` are settings of the load format."""
    with _prepared(folder, load_format, tp, rank, expert_parallel, **extra) as config:
        return get_model(vllm_config=config)


def build(folder: Path, tp: int = 1, rank: int = 0, expert_parallel: bool = False, device: str = "hpu"):
    """The same model before anything is loaded, every parameter byte to be loaded 0x5a (unless on `meta`)."""
    determine = expert_map_manager.determine_expert_map

    def on_host(*args, **kwargs):
        with torch.device("cpu"):
            return determine(*args, **kwargs)

    with _prepared(folder, "beam", tp, rank, expert_parallel) as config:
        torch.set_default_dtype(torch.bfloat16)
        # The manager logs the values of its map, which meta tensors do not have.
        with torch.device(device), mock.patch.object(expert_map_manager, "determine_expert_map", on_host):
            model = initialize_model(vllm_config=config)
    model.vllm_config = config
    for module in model.modules():
        # Scales of the cache keep their defaults where a checkpoint has none.
        if not isinstance(getattr(module, "quant_method", None), BaseKVCacheMethod):
            for parameter in module.parameters(recurse=False):
                parameter.data.view(torch.uint8).fill_(0x5A)
    return model
