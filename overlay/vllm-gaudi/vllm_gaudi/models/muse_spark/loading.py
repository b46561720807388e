# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint with every tensor accounted for; expert tensors go straight to this rank's share."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.models.utils import AutoWeightsLoader

from vllm_gaudi.models.beam.inventory import unpack
from vllm_gaudi.models.muse_spark.inventory import EXPERTS, MuseInventory, expected_tensors, text_name

# Only loggers below "vllm" have a handler.
logger = init_logger(f"vllm.{__name__}")
SUSPECT_LOW, SUSPECT_HIGH = 2, 252  # scale bytes outside lose values as subnormals or overflow


def load_checked(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Load `weights` into `model` and return the names of the parameters loaded.

    Raises:
        MuseCheckpointError: tensors that are missing, unknown, repeated or of another type than the quantisation
            section says. Parameters may have been written by then; the server does not start.
    """
    config = model.config
    layers = model.model.layers
    inventory = MuseInventory(expected_tensors(config, lambda layer: layers[layer].mlp.experts.packed))
    # Stacked experts are as wide as the latent space, not as the hidden states.
    stacked = SimpleNamespace(
        hidden_size=config.moe_hidden_size,
        moe_intermediate_size=config.moe_intermediate_size,
        num_experts=config.num_local_experts,
    )
    loaded: set[str] = set()
    skipped = suspect = 0

    def taken() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal skipped, suspect
        for stored, tensor in weights:
            name = text_name(stored)
            if name is None:
                skipped += 1
                continue
            for part_name, part in unpack(name, tensor, stacked):
                inventory.take(part_name, part)
                head, found, tail = part_name.partition(EXPERTS)
                if not found or not tail.split(".", 1)[0].isdecimal():
                    yield part_name, part
                    continue
                if tail.endswith("_scale"):
                    suspect += int(((part < SUSPECT_LOW) | (part > SUSPECT_HIGH)).sum())
                expert, projection, kind = tail.split(".")
                target = model.get_submodule(f"{head}{EXPERTS[:-1]}")
                parameter = target.load(int(expert), projection.removesuffix("_proj"), kind, part)
                loaded.add(f"{head}{EXPERTS}{parameter}")

    loaded |= AutoWeightsLoader(model).load_weights(taken(), mapper=model.hf_to_vllm_mapper)
    inventory.finish()
    if suspect:
        logger.warning("Muse Spark checkpoint: %d scale bytes outside 2..252, some products are not exact", suspect)
    census = ", ".join(f"{n} {str(dtype).removeprefix('torch.')}" for dtype, n in inventory.dtypes.most_common())
    logger.info_once(
        "Muse Spark checkpoint: %d tensors (%s), %d of vision and audio skipped", len(inventory.seen), census, skipped
    )
    return loaded
