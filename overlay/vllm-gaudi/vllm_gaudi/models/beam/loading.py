# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint through vLLM's loaders, with every tensor accounted for."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.model_executor.models.utils import AutoWeightsLoader

from vllm_gaudi.models.beam.chat_files import check_chat_files
from vllm_gaudi.models.beam.inventory import E4M3, BeamCheckpointError, Inventory, expected_tensors, unpack

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
EXPERTS = ".mlp.experts."


def quantized_modules(model: nn.Module):
    """Predicate: whether the module of a checkpoint name was built as FP8 in `model`."""
    params = dict(model.named_parameters())

    def is_quantized(module: str) -> bool:
        head, expert, tail = module.partition(EXPERTS)
        if expert:
            stack = "w2" if tail.endswith("down_proj") else "w13"
            return params[f"{head}{EXPERTS}routed_experts.{stack}_weight"].dtype == E4M3
        return params[model.hf_to_vllm_mapper._map_name(f"{module}.weight")].dtype == E4M3

    return is_quantized


def _filtered_experts(model: nn.Module):
    """Predicate: weights of other ranks' experts, which a reader skips when `--enable-ep-weight-filter` is on."""
    if not model.vllm_config.parallel_config.enable_ep_weight_filter:
        return lambda name: False

    def skipped(name: str) -> bool:
        head, expert, tail = name.partition(EXPERTS)
        if not expert or not tail.endswith(".weight"):
            return False
        layer = model.get_submodule(f"{head}{EXPERTS}routed_experts")
        return layer.expert_map_manager.map_global_to_local(int(tail.split(".", 1)[0])) == -1

    return skipped


def checked_tensors(
    model: nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    optional: Callable[[str], bool] = lambda name: False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """`weights` with one tensor per expert matrix, each checked; meta tensors do as well.

    Names for which `optional` holds may be missing. Reports the checkpoint at the end.

    Raises:
        BeamCheckpointError: config facts, tensors or chat files that are missing, unknown or contradictory.
    """
    config = model.config
    if config.absent_fields:
        raise BeamCheckpointError(
            f"config.json: {', '.join(config.absent_fields)} missing; they cannot be guessed, take them from the "
            "published checkpoint or give them in --hf-overrides"
        )
    inventory = Inventory(expected_tensors(config, quantized_modules(model)))
    for name, tensor in weights:
        for part_name, part in unpack(name, tensor, config):
            inventory.take(part_name, part)
            yield part_name, part
    inventory.finish(optional)
    if get_tensor_model_parallel_rank() == 0:
        report(model, inventory)


def load_checked(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Load `weights` into `model` and return the names of the parameters loaded.

    Raises:
        BeamCheckpointError: see `checked_tensors`. Parameters may have been
            written by then; the server does not start.
    """
    checked = checked_tensors(model, weights, _filtered_experts(model))
    return AutoWeightsLoader(model).load_weights(checked, mapper=model.hf_to_vllm_mapper)


def report(model: nn.Module, inventory: Inventory) -> None:
    """One log line with what only the real files can tell."""
    quant = model.vllm_config.quant_config
    census = ", ".join(
        f"{count} {str(dtype).removeprefix('torch.')}" for dtype, count in inventory.dtypes.most_common()
    )
    template = check_chat_files(model.vllm_config.model_config)
    logger.info(
        "Beam checkpoint: %d tensors (%s); %d ignore entries; rope_theta %s; %d positions; chat template %s",
        len(inventory.seen),
        census,
        len(quant.config["ignore"]) if quant else 0,
        model.config.rope_parameters["rope_theta"],
        model.config.max_position_embeddings,
        template,
    )
